"""Packed files: the same bits back for every type and shape, small, readable by others, and refused when damaged."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.sizes import prune
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

import acdc
from acdc.errors import ArgumentError
from acdc.io import IntegrityError, safetensors_metadata, seal_safetensors, write_safetensors
from acdc.sparsity import packed
from acdc.sparsity.masks import pack

DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.int64, torch.int32,
    torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.bool, torch.float8_e4m3fn,
    torch.float8_e5m2,
]  # fmt: skip


def sparse(*shape: int, density: float = 0.1, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(shape, generator=generator)
    return torch.where(torch.rand(shape, generator=generator) < density, values, 0.0)


def raw(tensor: Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def assert_same_bits(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for name in one:
        a, b = one[name], other[name]
        assert (a.dtype, a.shape, raw(a)) == (b.dtype, b.shape, raw(b)), name


def stored(path: Path) -> dict[str, tuple[str, list[int]]]:
    with safe_open(path, framework="pt") as file:
        return {name: (file.get_slice(name).get_dtype(), file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118


# The same bits


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_type_comes_back_bit_for_bit(dtype: torch.dtype, tmp_path: Path) -> None:
    width = torch.empty(0, dtype=dtype).element_size()
    numbers = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[width]
    bits = (sparse(61, 53) * 100).to(numbers)
    if dtype is torch.bool:
        bits = bits.ne(0).to(torch.int8)
    tensors = {"few": bits.view(dtype), "all": torch.ones(7, dtype=torch.int8).to(numbers).view(dtype)}
    packed.save(tensors, tmp_path / "x")
    assert "few.acdc_gaps" in stored(tmp_path / "x")
    assert_same_bits(acdc.load(tmp_path / "x"), tensors)


def test_minus_zero_and_nan_are_values(tmp_path: Path) -> None:
    weight = torch.zeros(1000)
    weight[3], weight[4], weight[5], weight[999] = -0.0, torch.nan, -torch.inf, 1.0
    weight.view(torch.int32)[6] = 0x7FC01234  # a NaN with a payload
    weight.view(torch.int32)[7] = 1  # the smallest subnormal
    packed.save({"weight": weight}, tmp_path / "x")
    assert stored(tmp_path / "x")["weight.acdc_values"] == ("F32", [6])
    assert_same_bits(acdc.load(tmp_path / "x"), {"weight": weight})


@given(
    shape=st.lists(st.integers(0, 40), max_size=4),
    density=st.sampled_from([0.0, 0.01, 0.1, 0.5, 1.0]),
    seed=st.integers(0, 9),
)
@settings(max_examples=25, deadline=None)
def test_any_shape_and_density(tmp_path_factory: pytest.TempPathFactory, shape, density, seed) -> None:
    path = tmp_path_factory.getbasetemp() / "any.safetensors"
    tensors = {"w": sparse(*shape, density=density, seed=seed), "more": torch.arange(3)}
    packed.save(tensors, path)
    assert_same_bits(acdc.load(path), tensors)


def test_layouts_scalars_and_empty_tensors(tmp_path: Path) -> None:
    weight = sparse(16, 8, 3, 3)
    tensors = {
        "last": weight.to(memory_format=torch.channels_last),
        "turned": sparse(40, 50).T,
        "strided": sparse(100, 100)[::2, ::3],
        "scalar": torch.tensor(7),
        "empty": torch.zeros(0, 4),
        "zero": torch.zeros(5000),
        "parameter": torch.nn.Parameter(sparse(30, 30)),
    }
    packed.save(tensors, tmp_path / "x")
    assert_same_bits(acdc.load(tmp_path / "x"), {name: one.detach() for name, one in tensors.items()})
    assert acdc.load(tmp_path / "x")["last"].is_contiguous()


def test_tied_weights_are_stored_once_and_are_one_tensor_again(tmp_path: Path) -> None:
    weight = sparse(64, 64)
    tensors = {"in": weight, "out": weight, "turned": weight.T, "part": weight[:10], "other": weight.clone()}
    packed.save(tensors, tmp_path / "x")
    again = acdc.load(tmp_path / "x")
    assert_same_bits(again, tensors)
    assert again["in"] is again["out"]
    assert again["other"] is not again["in"]
    assert "in.acdc_gaps" in stored(tmp_path / "x")
    assert "out.acdc_gaps" not in stored(tmp_path / "x")


def test_names_that_parts_would_have_leave_a_tensor_plain(tmp_path: Path) -> None:
    tensors = {f"{name}.acdc_{name}": torch.arange(3) for name in ("mask", "gaps", "values")}
    tensors |= {name: sparse(99, 99) for name in ("mask", "gaps", "values")}
    packed.save(tensors, tmp_path / "x")
    assert {*stored(tmp_path / "x")} == {*tensors}
    assert_same_bits(acdc.load(tmp_path / "x"), tensors)


# The file


@pytest.mark.parametrize(("density", "most"), [(0.1, 0.12), (0.05, 0.065), (0.01, 0.02)])
def test_a_file_is_a_little_more_than_its_values(density: float, most: float, tmp_path: Path) -> None:
    tensors = {f"layer{i}.weight": sparse(256, 128, 3, 3, density=density, seed=i) for i in range(3)}
    tensors |= {f"layer{i}.bias": torch.randn(256) for i in range(3)}
    packed.save(tensors, tmp_path / "x")
    save_file(tensors, tmp_path / "plain")
    assert (tmp_path / "x").stat().st_size <= most * (tmp_path / "plain").stat().st_size


def test_a_small_network_of_many_layers_is_below_14_percent_of_fp32(tmp_path: Path) -> None:
    model = prune(acdc.models.build("resnet20", classes=10, seed=0), 0.9)
    packed.save(model.state_dict(), tmp_path / "x")
    save_file(model.state_dict(), tmp_path / "plain")
    assert (tmp_path / "x").stat().st_size <= 0.14 * (tmp_path / "plain").stat().st_size


def test_masks_store_one_value_and_half_a_bit_per_element(tmp_path: Path) -> None:
    tensors = {"few": sparse(500, 500) != 0, "half": sparse(500, 500, density=0.5) != 0, "none": sparse(50, 50) > 99}
    packed.save(tensors, tmp_path / "x")
    kinds = stored(tmp_path / "x")
    assert kinds["few.acdc_values"] == kinds["half.acdc_values"] == ("BOOL", [1])
    assert kinds["half.acdc_mask"] == ("U8", [31_250])
    assert kinds["few.acdc_gaps"][1][0] < 0.5 * 31_250
    assert kinds["none.acdc_values"] == ("BOOL", [0])
    assert_same_bits(acdc.load(tmp_path / "x"), tensors)


def test_an_empty_layer_takes_next_to_nothing_beside_others(tmp_path: Path) -> None:
    tensors = {"empty": torch.zeros(300, 300), "w": sparse(200, 200)}
    packed.save(tensors, tmp_path / "x")
    assert stored(tmp_path / "x")["empty.acdc_gaps"] == ("U8", [9])
    assert_same_bits(acdc.load(tmp_path / "x"), tensors)


def test_a_nearly_empty_model_keeps_masks_that_justify_its_memory(tmp_path: Path) -> None:
    tensors = {"w": torch.zeros(100_000), "v": torch.zeros(50, 50)}
    tensors["w"][:100] = torch.arange(1.0, 101)
    packed.save(tensors, tmp_path / "x")
    assert stored(tmp_path / "x")["w.acdc_mask"] == ("U8", [12_500])
    assert stored(tmp_path / "x")["v.acdc_gaps"] == ("U8", [9])
    assert_same_bits(acdc.load(tmp_path / "x"), tensors)


def test_what_would_not_be_smaller_stays_plain(tmp_path: Path) -> None:
    tensors = {"dense": torch.randn(100, 100), "bytes": torch.arange(1, 251).byte(), "small": torch.zeros(40)}
    packed.save(tensors, tmp_path / "x")
    assert stored(tmp_path / "x") == {"dense": ("F32", [100, 100]), "bytes": ("U8", [250]), "small": ("F32", [40])}
    assert_same_bits(load_file(tmp_path / "x"), tensors)


def read_by_the_documentation(path: Path) -> tuple[dict[str, Any], dict[str, Any], bytes]:
    """Return the header, the description of packed tensors and the data, without safetensors and without acdc."""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    assert length % 8 == 0
    header = json.loads(content[8 : 8 + length])
    return header, json.loads(header.pop("__metadata__")["acdc"])["packed"], content[8 + length :]


def bits_of(content: bytes) -> list[int]:
    return [byte >> place & 1 for byte in content for place in range(8)]


def test_the_bytes_of_a_mask_are_those_of_the_documentation(tmp_path: Path) -> None:
    weight = torch.zeros(20, 100)
    weight.view(-1)[::2] = torch.arange(1.0, 1001)
    weight[0, 0], weight[19, 99] = -0.0, -2.0
    packed.save({"w": weight}, tmp_path / "x")
    header, described, data = read_by_the_documentation(tmp_path / "x")
    assert described == {"version": 2, "shapes": {"w": [20, 100]}, "same": {}}
    assert header["w.acdc_values"] == {"dtype": "F32", "shape": [1001], "data_offsets": [0, 4004]}
    assert struct.unpack("<1001f", data[:4004]) == (-0.0, *range(2, 1001), -2.0)
    assert header["w.acdc_mask"] == {"dtype": "U8", "shape": [250], "data_offsets": [4004, 4254]}
    assert [i for i, bit in enumerate(bits_of(data[4004:])) if bit] == [*range(0, 2000, 2), 1999]


def test_the_bytes_of_gaps_are_those_of_the_documentation(tmp_path: Path) -> None:
    weight = sparse(20, 100)
    packed.save({"w": weight}, tmp_path / "x")
    header, described, data = read_by_the_documentation(tmp_path / "x")
    assert described == {"version": 2, "shapes": {"w": [20, 100]}, "same": {}}
    (begin, end), count = header["w.acdc_gaps"]["data_offsets"], header["w.acdc_values"]["shape"][0]
    code = data[begin:end]
    low, stored_count = code[0], int.from_bytes(code[1:9], "little")
    assert (low, stored_count) == (3, count)
    split = 9 + -(-count * low // 8)
    lows, rest, at, positions = bits_of(code[9:split]), bits_of(code[split:]), 0, list[int]()
    for number in range(count):
        zeros = rest[at:].index(1)
        at += zeros + 1
        gap = (zeros << low) + sum(lows[number * low + place] << place for place in range(low))
        positions.append((positions[-1] if positions else -1) + gap + 1)
    assert positions == weight.view(-1).nonzero().flatten().tolist()
    assert not any(rest[at:])
    assert struct.unpack(f"<{count}f", data[: 4 * count]) == tuple(weight.view(-1)[positions].tolist())


def version_one(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write a file as acdc did before there were gaps: a mask, and a value for each of its bits."""
    parts = {f"{name}.acdc_values": tensor[tensor != 0] for name, tensor in tensors.items()}
    parts |= {f"{name}.acdc_mask": pack(tensor) for name, tensor in tensors.items()}
    described = {"version": 1, "shapes": {name: [*tensor.shape] for name, tensor in tensors.items()}, "same": {}}
    save_file(parts, path, safetensors_metadata({"packed": described}))
    seal_safetensors(path)


def test_files_of_version_1_are_read(tmp_path: Path) -> None:
    tensors = {"w": sparse(50, 50), "mask": sparse(30, 30) != 0, "odd": sparse(7, 11)}
    version_one(tmp_path / "x", tensors)
    assert_same_bits(acdc.load(tmp_path / "x"), tensors)


def test_the_same_tensors_give_the_same_file_in_any_order(tmp_path: Path) -> None:
    tensors = {"b": sparse(50, 50), "a": sparse(60, 60).half(), "c": torch.ones(3, dtype=torch.uint8)}
    packed.save(tensors, tmp_path / "x")
    packed.save(dict(reversed(tensors.items())), tmp_path / "y")
    assert (tmp_path / "x").read_bytes() == (tmp_path / "y").read_bytes()


def test_wide_elements_lie_at_multiples_of_their_size(tmp_path: Path) -> None:
    packed.save({"a": torch.ones(3, dtype=torch.uint8), "b": sparse(61, 61).half(), "c": torch.ones(5)}, tmp_path / "x")
    content = (tmp_path / "x").read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    for name, width in (("c", 4), ("b.acdc_values", 2)):
        assert header[name]["data_offsets"][0] % width == 0


def test_plain_files_of_acdc_and_of_others_are_read(tmp_path: Path) -> None:
    tensors = {"w": sparse(50, 50), "n": torch.tensor(3)}
    write_safetensors({tmp_path / "ours": tensors})
    save_file(tensors, tmp_path / "theirs", {"format": "pt"})
    save_file(tensors, tmp_path / "bare")
    for name in ("ours", "theirs", "bare"):
        assert_same_bits(acdc.load(tmp_path / name), tensors)


def test_details_travel_beside_the_shapes(tmp_path: Path) -> None:
    packed.save({"w": sparse(50, 50)}, tmp_path / "x", {"total_steps": 3})
    assert packed.load_with_details(tmp_path / "x")[1] == {"total_steps": 3}


def test_nothing_is_left_where_writing_fails(tmp_path: Path) -> None:
    packed.save({"w": torch.ones(2)}, tmp_path / "x")
    before = (tmp_path / "x").read_bytes()
    for bad in ({"w": 3}, {"w": torch.zeros(3, device="meta")}, {"w": torch.zeros(3, dtype=torch.complex128)}):
        with pytest.raises(ArgumentError, match=r"^w="):
            packed.save(bad, tmp_path / "x")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ArgumentError, match=r"^w="):
        packed.save({"w": torch.eye(3).to_sparse()}, tmp_path / "x")
    with pytest.raises(ArgumentError, match=r"write model.state_dict\(\)"):
        packed.save(torch.nn.Linear(2, 2), tmp_path / "x")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ArgumentError, match="printable"):
        packed.save({"\ud800": torch.ones(3)}, tmp_path / "x")
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
    assert (tmp_path / "x").read_bytes() == before


# Damage: whole files with their digest, and parts that do not fit together


def rewritten(path: Path, change: Callable[[dict[str, Any], dict[str, Any], bytearray], None]) -> Path:
    """Change a file's header, its details or its data, and give it a digest of its own."""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header, data = json.loads(content[8 : 8 + length]), bytearray(content[8 + length :])
    details = json.loads(header["__metadata__"]["acdc"])
    change(header, details, data)
    details["acdc_sha256"] = "0" * 64
    header["__metadata__"] = {"acdc": json.dumps(details)}
    text = json.dumps(header, separators=(",", ":")).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    seal_safetensors(path)
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Tensors of 41 x 41 elements: 1,681, so that the last byte of a mask has seven bits to spare. `g` has gaps."""
    tensors = {"w": sparse(41, 41, density=0.5), "g": sparse(41, 41, seed=1), "b": torch.ones(4)}
    packed.save(tensors, tmp_path / "model")
    return tmp_path / "model"


def packed_of(**changes: Any) -> Callable[..., None]:
    return lambda header, details, data: details["packed"].update(changes)


def shape_of(*shape: Any, name: str = "w") -> Callable[..., None]:
    return lambda header, details, data: details["packed"]["shapes"].update({name: list(shape)})


def flip(entry: str, at: int, value: int) -> Callable[..., None]:
    def change(header: dict[str, Any], details: dict[str, Any], data: bytearray) -> None:
        begin, end = header[entry]["data_offsets"]
        data[(begin, end)[at < 0] + at] ^= value

    return change


def rename(old: str, new: str) -> Callable[..., None]:
    return lambda header, details, data: header.update({new: header.pop(old)})


def offsets(name: str, begin: int, end: int) -> Callable[..., None]:
    return lambda header, details, data: header[name].update(data_offsets=[begin, end])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (shape_of(41, 42), "w: 1,722 elements need a mask of 216 bytes, not \\[211\\]"),
        (shape_of(2**40, 2**20), "w: 1,152,921,504,606,846,976 elements need a mask"),
        (shape_of(2**63), "packed.shapes.w\\[0\\]"),
        (shape_of(-41, -41), "packed.shapes.w\\[0\\] = -41"),
        (shape_of(41, 0), "packed.shapes.w\\[1\\] = 0"),
        (shape_of(41, "41"), "packed.shapes.w\\[1\\]"),
        (shape_of(41.0, 41), "packed.shapes.w\\[0\\]"),
        (shape_of(*[1] * 100, 1681), "w: it has 101 axes"),
        (flip("w.acdc_mask", 0, 1), "w: its mask keeps \\d+ elements, but \\d+ values are stored"),
        (flip("w.acdc_mask", -1, 0x80), "w: its mask has bits set after its last element"),
        (flip("g.acdc_gaps", 0, 0x40), "g: its gaps do not begin with their number of low bits"),
        (flip("g.acdc_gaps", 0, 7), "g: (its \\d+ bytes of gaps cannot hold|it has \\d+ gaps where)"),
        (flip("g.acdc_gaps", 1, 1), "g: it has \\d+ gaps where \\d+ are announced"),
        (flip("g.acdc_gaps", 6, 1), "g: its \\d+ bytes of gaps cannot hold 1,099,511,\\d+,\\d+ of them in 1,681"),
        (flip("g.acdc_gaps", -1, 0x80), "g: (it has \\d+ gaps where|its gaps have bits after)"),
        (shape_of(41, 10, name="g"), "g: its gaps lead to element 1,\\d+ of 410"),
        (shape_of(2**40, name="g"), "g: with its 1,099,511,627,776 elements, tensors take more than 256 times"),
        (shape_of(*[1] * 100, 1681, name="g"), "g: it has 101 axes"),
        (packed_of(version=1), "g: it has .acdc_gaps, which version 1 does not know"),
        (rename("b", "g.acdc_mask"), "g: it has both .acdc_gaps and .acdc_mask"),
        (rename("g.acdc_gaps", "x"), "g: g.acdc_gaps or .acdc_mask is missing"),
        (lambda header, details, data: header["g.acdc_gaps"].update(dtype="I8"), "g: expected bytes in .acdc_gaps"),
        (rename("w.acdc_values", "w.acdc_value"), "w: w.acdc_values is missing"),
        (rename("w.acdc_mask", "w"), "w: it is stored twice"),
        (rename("b", "w"), "w: it is stored twice"),
        (packed_of(same={"x": "y"}), "x: there is no y"),
        (packed_of(same={"b": "w"}), "b: it is stored twice"),
        (packed_of(same={"w": "b"}), "w: it is stored twice"),
        (packed_of(version=3), "packed in version 3, and this acdc reads 2; install a newer acdc"),
        (packed_of(version="1"), "packed.version"),
        (packed_of(shapes=[1]), "packed.shapes"),
        (lambda header, details, data: details.update(packed=[]), "packed"),
        (
            lambda header, details, data: details.pop("packed"),
            "it is packed, but the metadata with its shape are missing",
        ),
        (lambda header, details, data: header["w.acdc_mask"].update(dtype="I8"), "w: expected bytes in .acdc_mask"),
        (
            lambda header, details, data: header["w.acdc_values"].update(shape=[1, -1]),
            "w.acdc_values: its shape \\[1, -1",
        ),
        (
            lambda header, details, data: header["b"].update(shape=[2**40]),
            "b: \\[1099511627776\\] elements of F32 do not",
        ),
        (lambda header, details, data: header.update(b={}), "b: its entry in the header lacks"),
        (lambda header, details, data: header["b"].update(dtype="F5"), "b: its type, F5, is not one that acdc reads"),
        (offsets("b", 10**12, 10**12 + 16), "b: its bytes, from 1000000000000 to .*, are not in the"),
        (offsets("b", 2**63, 2**64 - 1), "b: \\[4\\] elements of F32 do not take the bytes from 9223372036854775808"),
        (offsets("w.acdc_values", 0, 16), "w.acdc_values: .* elements of F32 do not take the bytes from 0 to 16"),
        (offsets("b", 4, 20), "b?: its bytes, from \\d+ to \\d+, (overlap those of|leave a gap)"),
        (lambda header, details, data: data.extend(b"more"), "no tensor has the last 4 bytes"),
        (lambda header, details, data: data.pop(), "w.acdc_mask: its bytes, from \\d+ to \\d+, are not in the"),
    ],
)
def test_parts_that_do_not_fit_together_are_refused(file: Path, change: Callable[..., None], message: str) -> None:
    with pytest.raises(IntegrityError, match=message) as caught:
        acdc.load(rewritten(file, change))
    assert str(file) in str(caught.value)


def test_values_of_another_shape_are_refused(file: Path) -> None:
    def change(header: dict[str, Any], details: dict[str, Any], data: bytearray) -> None:
        header["w.acdc_values"]["shape"].append(1)

    with pytest.raises(IntegrityError, match=r"w: expected bytes in \.acdc_mask and a row of values"):
        acdc.load(rewritten(file, change))


def test_every_cut_and_every_changed_byte_is_noticed(file: Path) -> None:
    content = file.read_bytes()
    for at in range(0, len(content), 23):
        file.write_bytes(content[:at])
        with pytest.raises(IntegrityError):
            acdc.load(file)
        file.write_bytes(content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :])
        with pytest.raises(IntegrityError):
            acdc.load(file)


@pytest.mark.parametrize("length", [10**8 + 1, 2**63, 2**64 - 1])
def test_a_header_that_claims_to_be_huge_is_refused(length: int, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(struct.pack("<Q", length) + b"{}")
    with pytest.raises(IntegrityError, match="it is truncated, or not a safetensors file"):
        acdc.load(tmp_path / "x")


def test_metadata_nested_without_end_are_refused(tmp_path: Path) -> None:
    save_file({"w": torch.ones(2)}, tmp_path / "x", {"acdc": "[" * 100_000})
    with pytest.raises(IntegrityError):
        acdc.load(tmp_path / "x")


def test_a_missing_file_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nope"):
        acdc.load(tmp_path / "nope")
