"""Small random configurations of transformers' detectors, for the tests."""

from __future__ import annotations

import json
from typing import Any

from rankless.recipe.model_kinds import ModelKeys, TransformersModel

_RT = {
    "model_type": "rt_detr_resnet",
    "embedding_size": 8,
    "hidden_sizes": [8, 16, 16, 16],
    "depths": [1, 1, 1, 1],
    "layer_type": "basic",
    "out_indices": [2, 3, 4],
}
_HG = {
    "model_type": "hgnet_v2",
    "hidden_sizes": [16, 16, 16, 16],
    "stem_channels": [3, 8, 8],
    "stage_in_channels": [8, 16, 16, 16],
    "stage_mid_channels": [8, 8, 8, 8],
    "stage_out_channels": [16, 16, 16, 16],
    "stage_num_blocks": [1, 1, 1, 1],
    "stage_numb_of_layers": [1, 1, 1, 1],
    "use_learnable_affine_block": True,
    "out_indices": [2, 3, 4],
}
_HYBRID: dict[str, Any] = {
    "encoder_in_channels": [16, 16, 16],
    "encoder_hidden_dim": 16,
    "encoder_ffn_dim": 16,
    "encoder_attention_heads": 2,
    "d_model": 16,
    "num_queries": 10,
    "decoder_in_channels": [16, 16, 16],
    "decoder_ffn_dim": 16,
    "decoder_layers": 2,
    "decoder_attention_heads": 2,
    "num_denoising": 4,
}
_PLAIN: dict[str, Any] = {
    "backbone_config": {
        "model_type": "resnet",
        "embedding_size": 8,
        "hidden_sizes": [8, 8, 16, 16],
        "depths": [1, 1, 1, 1],
        "layer_type": "basic",
        "out_indices": [4],
    },
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 16,
    "decoder_ffn_dim": 16,
    "num_queries": 10,
    "auxiliary_loss": True,
    "dropout": 0.1,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "rt_detr": {"backbone_config": _RT, **_HYBRID},
    "rt_detr_v2": {"backbone_config": _RT, **_HYBRID},
    "d_fine": {"backbone_config": _HG, **_HYBRID, "decoder_n_points": [3, 6, 3], "max_num_bins": 8},
    "detr": _PLAIN,
    "conditional_detr": _PLAIN,
    "deformable_detr": _PLAIN | {"backbone_config": {**_PLAIN["backbone_config"], "out_indices": [2, 3, 4]}},
}


def keys(kind: str, **more: Any) -> ModelKeys:
    config = json.dumps({"model_type": kind, **CONFIGS[kind], **more})
    return TransformersModel(name="hf/config", config=config, image_size=128)
