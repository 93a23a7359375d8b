"""Tensors find their places in a model, and what does not fit is said."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from rankless.errors import UserError
from rankless.models.weights_files.matching import align, fit


class Wrapped(nn.Module):
    """A model with a part of a wrapper's name."""

    def __init__(self) -> None:
        super().__init__()
        self.module = nn.Linear(2, 3)
        self.model = nn.BatchNorm1d(3)


def state(net: nn.Module, prefix: str = "") -> dict[str, torch.Tensor]:
    torch.manual_seed(3)
    return {prefix + name: torch.rand(tensor.shape) for name, tensor in net.state_dict().items()}


STEPS = st.lists(st.sampled_from(["module.", "_orig_mod.", "model.", "net.", "network."]), max_size=4)


@given(steps=STEPS, net=st.sampled_from([Wrapped(), nn.Sequential(nn.Linear(2, 2)), nn.BatchNorm2d(3)]))
def test_any_stack_of_wrappers_comes_off_and_nothing_else(steps, net):
    found = state(net)
    renamed, notes = align(net.state_dict(), {"".join(steps) + name: one for name, one in found.items()})
    assert renamed.keys() == found.keys()
    assert all(renamed[name] is found[name] for name in found)
    assert bool(notes) == bool(steps)


@pytest.mark.parametrize(
    "names",
    [
        ["backbone.module.conv", "backbone.module.norm"],  # in the middle
        ["module.conv", "norm"],  # not before all
        ["layer1.conv", "layer2.conv"],  # no wrapper's
        ["my_module.conv"],
    ],
)
def test_other_parts_of_names_stay(names):
    own = {name.rpartition(".")[2]: torch.ones(1) for name in names}
    found = {name: torch.ones(1) for name in names}
    assert align(own, found) == (found, [])


def test_a_strict_fit_is_a_fit_of_everything():
    net = Wrapped()
    found = state(net, "module.")
    fitted = fit(net.state_dict(), found)
    net.load_state_dict(fitted.state)
    assert torch.equal(net.module.weight, found["module.module.weight"])
    assert net.model.num_batches_tracked.dtype == torch.int64  # the file has it in float32
    assert not fitted.misfits


def test_counters_of_old_files_begin_at_zero():
    net = nn.BatchNorm2d(3)
    net.num_batches_tracked += 5
    found = {name: one for name, one in state(net).items() if "num_batches" not in name}
    fitted = fit(net.state_dict(), found)
    assert fitted.state["num_batches_tracked"] == 0 and not fitted.misfits
    assert any("num_batches_tracked" in note for note in fitted.notes)


def test_a_strict_fit_tells_what_does_not():
    own = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 4)).state_dict()
    found = {**own, "1.weight": torch.ones(9, 3), "x\n\x1b[31m": torch.ones(1)}
    found["1.bias"] = torch.ones(4, dtype=torch.int8)
    del found["0.bias"]
    with pytest.raises(UserError) as error:
        fit(own, found, source="w.pt")
    lines = str(error.value).splitlines()
    assert lines[0].startswith("w.pt: the weights do not fit the model (1 missing, 1 unexpected, 2 with a ")
    assert sorted(lines[1:]) == sorted(
        [
            "  missing     0.bias 3",
            r"  unexpected  x\n\x1b[31m 1",
            "  shape       1.weight: 9×3 in the file, 4×3 in the model",
            "  shape       1.bias: 4 (int8) in the file, 4 (float32) in the model",
        ]
    )


def test_a_partial_fit_takes_what_fits_and_lists_the_rest():
    net = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 4))
    own = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    found = {f"module.{name}": one + 1 for name, one in own.items()}
    found["module.1.bias"] = torch.ones(9)
    del found["module.0.bias"]
    found |= {f"module.extra{n}": torch.ones(1) for n in range(30)}
    fitted = fit(own, found, partial=True)
    misfits = fitted.misfits
    assert (misfits.missing, misfits.misshapen, len(misfits.unexpected)) == (("0.bias",), ("1.bias",), 30)
    for name, tensor in fitted.state.items():
        assert torch.equal(tensor, own[name] + name.endswith("weight")), name
    text = "\n".join(fitted.notes)
    assert (
        "2 of the model's 4 tensors are loaded (1 missing, 30 unexpected, 1 with a different shape)" in text
    )
    assert text.count("  unexpected ") == 20 and "… and 10 more unexpected" in text


def test_a_partial_fit_of_nothing_is_an_error():
    own = nn.BatchNorm2d(3).state_dict()
    for found in ({"x": torch.ones(3)}, {"num_batches_tracked": torch.tensor(4)}, {}):
        with pytest.raises(UserError, match="no tensor "):
            fit(own, found, partial=True)


def test_values_that_are_no_numbers_are_reported():
    own = nn.Linear(2, 2).state_dict()
    found = {**own, "bias": torch.tensor([1.0, torch.nan])}
    assert "the file contains NaN or infinite values in 'bias'" in fit(own, found).notes[-1]


def test_the_models_own_tensors_are_not_shared():
    own = nn.Linear(2, 2).state_dict()
    fitted = fit(own, {"weight": torch.ones(2, 2)}, partial=True)
    fitted.state["bias"].fill_(7)
    assert not (own["bias"] == 7).any()
