"""Every tensor gets a type that fits its rows, and more bits never come out smaller."""

from __future__ import annotations

import gguf
import pytest
from hypothesis import given
from hypothesis import strategies as st

from berth_runtime.convert.mixtures import MIXTURES, Shape, choose

SHAPES = st.builds(
    Shape,
    layers=st.integers(1, 100),
    heads_per_kv_head=st.integers(1, 16),
    experts=st.sampled_from([0, 8, 64]),
    tied=st.booleans(),
)
PARTS = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_up", "ffn_gate", "ffn_down", "ffn_down_exps", "attn_norm")


@given(st.sampled_from(sorted(MIXTURES)), st.sampled_from(PARTS), st.integers(1, 20_000), SHAPES, st.data())
def test_the_type_of_a_tensor_always_fits_its_rows(
    mixture: str, part: str, row: int, shape: Shape, data: st.DataObject
) -> None:
    layer = data.draw(st.integers(0, shape.layers - 1))
    choice = choose(mixture, f"blk.{layer}.{part}.weight", (row, 8), shape)
    if part == "attn_norm":
        assert choice is None
        return
    assert choice is not None
    block, _ = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[choice.type]]
    assert row % block == 0
    if row % 256 == 0:
        assert not choice.fell_back


@pytest.mark.parametrize("name", ["blk.0.ffn_gate_inp.weight", "output_norm.weight", "blk.1.attn_q.bias"])
def test_what_is_small_or_sensitive_stays_as_it_is(name: str) -> None:
    assert choose("Q4_K_M", name, (4096, 64), Shape(32, 4, 8, False)) is None


def test_the_layers_of_a_mixture_are_those_that_llama_cpp_gives_more_bits() -> None:
    shape = Shape(layers=32, heads_per_kv_head=4, experts=0, tied=False)
    types = [choose("Q4_K_M", f"blk.{layer}.ffn_down.weight", (14336, 4096), shape) for layer in range(32)]
    assert [each and each.type for each in types].count("Q6_K") == 16
    assert {each and each.type for each in types} == {"Q6_K", "Q4_K"}
    output = choose("Q4_K_M", "output.weight", (4096, 128256), shape)
    assert output and output.type == "Q6_K"


def test_an_unknown_mixture_is_no_mixture() -> None:
    with pytest.raises(KeyError):
        choose("Q9_X", "blk.0.attn_q.weight", (256, 256), Shape(1, 1, 0, False))
