"""Published configurations of transformers detectors: only the keys that differ from the library's defaults.

The values come from the checkpoints that PekingU (RT-DETR, RT-DETRv2) and ustc-community (D-FINE) published
on the Hugging Face Hub.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def _resnet18(kind: str) -> dict[str, Any]:
    backbone = {
        "model_type": "rt_detr_resnet",
        "hidden_sizes": [64, 128, 256, 512],
        "depths": [2, 2, 2, 2],
        "layer_type": "basic",
        "out_indices": [2, 3, 4],
    }
    return {
        "model_type": kind,
        "backbone_config": backbone,
        "encoder_in_channels": [128, 256, 512],
        "hidden_expansion": 0.5,
        "decoder_layers": 3,
    }


def _d_fine(
    stem: Sequence[int],
    middle: Sequence[int],
    out: Sequence[int],
    layers: int,
    *,
    blocks: int = 3,
    affine: bool = True,
    first: int = 2,
    **keys: Any,
) -> dict[str, Any]:
    """Return a configuration of D-FINE with an HGNetV2 backbone that has the given channels and layers."""
    backbone = {
        "model_type": "hgnet_v2",
        "hidden_sizes": list(out),
        "stem_channels": [3, *stem],
        "stage_in_channels": [stem[1], *out[:3]],
        "stage_mid_channels": list(middle),
        "stage_out_channels": list(out),
        "stage_num_blocks": [1, 1, blocks, 1],
        "stage_downsample": [False, True, True, True],
        "stage_light_block": [False, False, True, True],
        "stage_kernel_size": [3, 3, 5, 5],
        "stage_numb_of_layers": [layers] * 4,
        "use_learnable_affine_block": affine,
        "out_indices": list(range(first, 5)),
    }
    reads = {"encoder_in_channels": list(out[first - 1 :])}
    return {"model_type": "d_fine", "backbone_config": backbone, **reads, **keys}


_SMALL = ([16, 16], [16, 32, 64, 128], [64, 256, 512, 1024], 3)
_THREE_MAPS: dict[str, Any] = {"decoder_n_points": [3, 6, 3]}

CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "hf/rtdetr_r18vd": _resnet18("rt_detr"),
    "hf/rtdetr_r50vd": {"model_type": "rt_detr"},
    "hf/rtdetr_v2_r18vd": _resnet18("rt_detr_v2"),
    "hf/dfine_n": _d_fine(
        *_SMALL,
        blocks=2,
        first=3,
        num_feature_levels=2,
        feat_strides=[16, 32],
        encode_proj_layers=[1],
        encoder_hidden_dim=128,
        encoder_ffn_dim=512,
        hidden_expansion=0.34,
        depth_mult=0.5,
        d_model=128,
        decoder_in_channels=[128, 128],
        decoder_ffn_dim=512,
        decoder_layers=3,
        decoder_n_points=[6, 6],
    ),
    "hf/dfine_s": _d_fine(
        *_SMALL, blocks=2, hidden_expansion=0.5, depth_mult=0.34, decoder_layers=3, **_THREE_MAPS
    ),
    "hf/dfine_m": _d_fine(
        [24, 32],
        [32, 64, 128, 256],
        [96, 384, 768, 1536],
        4,
        depth_mult=0.67,
        decoder_layers=4,
        **_THREE_MAPS,
    ),
    "hf/dfine_l": _d_fine(
        [32, 48], [48, 96, 192, 384], [128, 512, 1024, 2048], 6, affine=False, **_THREE_MAPS
    ),
}
"""Configurations by model name."""

REPOSITORIES: Mapping[str, str] = {
    "hf/rtdetr_r18vd": "PekingU/rtdetr_r18vd",
    "hf/rtdetr_r50vd": "PekingU/rtdetr_r50vd",
    "hf/rtdetr_v2_r18vd": "PekingU/rtdetr_v2_r18vd",
    "hf/dfine_n": "ustc-community/dfine-nano-coco",
    "hf/dfine_s": "ustc-community/dfine-small-coco",
    "hf/dfine_m": "ustc-community/dfine-medium-coco",
    "hf/dfine_l": "ustc-community/dfine-large-coco",
}
"""Hugging Face Hub repositories with the weights for each configuration."""
