"""The sample trees, as far as this room knows them: records, their operators' dumps, tensors."""
from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Dict, List, Tuple

import pytest

from npu_overflow.dump.envelope import open_envelope
from npu_overflow.dump.reader import Tensor, open_dump, open_operator
from npu_overflow.dump.record import read_record
from npu_overflow.dump.scan import find, name_of
from npu_overflow.dump.writer import TensorSpec, write_dump, write_record
from npu_overflow.errors import DumpFormatError

CORPUS = Path(__file__).parent.parent / "data" / "corpus"
TREES = sorted(path.name for path in CORPUS.iterdir())


def seen(name: str) -> Tuple[List[Dict[str, Any]], int]:
    """What the newest run's records and dumps say, by time, and how many files could not be used in full."""
    tree = find(str(CORPUS / name / "dump")).select()
    found, problems = [], len(tree.problems)
    for entry in sorted(tree.records, key=lambda entry: (entry.name.timestamp, entry.path)):
        try:
            record = read_record(entry.path)
        except DumpFormatError:
            problems += 1
            continue
        for part in record.parts:
            dumps = tree.dumps_of(entry, part.task_id, part.stream_id, part.context_id, part.thread_id)
            dump = open_operator(dumps) if dumps else None
            problems += dump is None or dump.problem is not None
            status = part.status if isinstance(part.status, int) else list(part.status)
            facts = {"core": part.core, "status": status, "status_bits": list(part.status_bits), "task_id": part.task_id, "stream_id": part.stream_id}
            facts.update(context_id=part.context_id, thread_id=part.thread_id, device=entry.place.device, step=entry.place.data_index)
            facts.update(op_type=dumps[0].name.op_type if dumps else None, op_name=dump.op_name if dump else None)
            if dump is not None:
                facts.update(inputs=len(dump.inputs), outputs=len(dump.outputs))
                for side, tensors in (("input", dump.inputs), ("output", dump.outputs)):
                    for tensor in tensors:
                        assert sum(piece.size for piece in tensor.chunks(7)) == tensor.count * tensor.parts
                        original = None if tensor.original_shape is None else list(tensor.original_shape)
                        facts["%s%d" % (side, tensor.index)] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "original_shape": original}
            found.append(facts)
    return found, problems


@pytest.mark.parametrize("name", TREES)
def test_a_sample_tree(name: str) -> None:
    expected = json.loads((CORPUS / name / "expected.json").read_text(encoding="utf-8"))
    found, problems = seen(name)
    assert problems == expected["problems"]
    assert len(found) == len(expected["operators"])
    for facts, operator in zip(found, expected["operators"]):
        for key, value in operator.items():
            if isinstance(value, dict):
                assert {one: facts[key][one] for one in value if one in facts[key]} == {one: value[one] for one in value if one in facts[key]}
            elif key in facts:
                assert facts[key] == value, key


def rewritten(path: str, folder: Path) -> bytes:
    """The same file, read and written again."""
    name, message = name_of(path), open_envelope(path).message
    assert name is not None
    target = str(folder / os.path.basename(path))
    if name.kind == "record":
        record = read_record(path)
        valid = 1 if record.valid is None else record.valid
        write_record(target, record.parts, record.layout, record.version, valid, dump_time=message.dump_time)
    else:
        dump = open_dump(path, name)
        specs = [[spec_of(tensor) for tensor in side] for side in (dump.inputs, dump.outputs)]
        attrs = [(attr.name.decode(), attr.value.decode()) for attr in message.attr]
        write_dump(target, dump.op_name, specs[0], specs[1], dump_time=dump.dump_time, attrs=attrs)
    return Path(target).read_bytes()


def spec_of(tensor: Tensor) -> TensorSpec:
    return TensorSpec(
        None if tensor.note == "no_data" else tensor.raw().tobytes(),
        tensor.data_type,
        tensor.whole_shape or tensor.shape,
        tensor.format,
        tensor.original_shape,
        tensor.original_format,
        tensor.size,
        tensor.address,
        tensor.sub_format,
    )


@pytest.mark.parametrize("name", [name for name in TREES if name not in ("damaged", "no_overflow")])
def test_the_writer_writes_what_was_read_byte_by_byte(name: str, tmp_path: Path) -> None:
    """The vendor's parser reads the sample trees, so it reads what the writer makes."""
    tree = find(str(CORPUS / name / "dump"))
    assert tree.records and tree.dumps
    for entry in tree.records + tree.dumps:
        assert rewritten(entry.path, tmp_path) == Path(entry.path).read_bytes()


def test_all_the_trees_are_here() -> None:
    assert len(TREES) == 24
    assert os.listdir(str(CORPUS / "no_overflow" / "dump")) == [".gitkeep"]
