"""What the fuzzers begin with: the sample trees of ``tests/data`` and a few that those lack (a host collector's tree, manifests, statistics files, reports)."""
from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Dict, List

import numpy as np

from npu_overflow.analysis.analyzer import analyze
from npu_overflow.dump.names import dump_name, record_name
from npu_overflow.dump.record import Part
from npu_overflow.dump.writer import TensorSpec, write_dump, write_record
from npu_overflow.training.manifest import Manifest

CORPUS = Path(__file__).resolve().parent.parent / "data" / "corpus"

RUN = "20240517093010"
TIME = 1715938212000000
INF = np.array([[1.0, np.inf], [0.5, 4.0]], np.float16)
CLEAN = np.array([[1.0, -2.0], [0.5, 4.0]], np.float16)
#: statistics of a tensor that the host collector cut
CUT = {"min": 0.5, "max": "inf", "mean": 2, "nan": 0, "pos_inf": 1, "neg_inf": 0, "first_overflow": {"index": [0, 1], "value": "inf"}}

#: options of ``npu-overflow show`` that are tried on every kind of file
SHOWN = ([], ["--save", "npy"], ["--save", "txt"], ["--tensor", "output.0"], ["--tensor", "output.0", "--index", "0,:"], ["--mode", "saturation"])


def corpus() -> List[str]:
    """The sample trees."""
    return sorted(str(path / "dump") for path in CORPUS.iterdir())


def manifest(**more: Any) -> Manifest:
    """A manifest in which nothing is missing."""
    facts: Dict[str, Any] = {
        "run_id": "job 1", "rank": 0, "world_size": 2, "device": 0, "hostname": "host", "pid": 7, "started": 1715938212.5, "versions": {"python": "3.7.5"},
        "mode": "inf_nan", "collector": "host", "options": {"patience": 3, "dump_path": "x"}, "argv": ["train.py", "--lr", "1"],
        "environment": {"RANK_ID": "0"},
        "state": "reported", "state_history": [(1, "watching"), (4, "collecting")], "optimizers": [{"name": "Adam", "family": "keras", "dynamic": True}],
        "drops": [(3, 65536.0, 32768.0), (4, 32768.0, 16384.0)], "rate": 0.25, "trigger": {"step": 4, "optimizer": "Adam", "reason": "patience"},
        "kept_steps": [4], "kept_folders": ["0/graph/1/4"], "train_steps": {4: 104}, "remarks": [("remark.unfinished", {"step": "3"})],
        "request": {"why": "restart", "step": 4}, "reports": ["report.json"],
    }
    facts.update(more)
    return Manifest(**facts)


def host_tree(root: str) -> str:
    """A tree of the host collector with a manifest, sporadic records, a cut tensor and an unfinished file."""
    for step, kept in ((3, False), (4, True)):
        folder = os.path.join(root, RUN, "0", "graph", "1", str(step))
        os.makedirs(folder)
        for number, (kind, name) in enumerate((("Mul", "model/mul"), ("AddV2", "model/add"))):
            host = {
                "host": 1, "core": "CPU", "op_type": kind, "op_name": name, "phase": "forward", "location": "train.py:%d" % number, "location_kind": "call",
                "forward_op": None, "origin": "variable" if number else "operator", "role": "inherited" if number else "culprit", "train_step": 100 + step,
                "origin_detail": {"name": "w:0", "element": [0, 1], "value": "inf"} if number else None, "cured_by_scale": True,
                "tensors": {"output.0": CUT} if number and kept else {},
            }
            stamp = TIME + step * 1000000 + number
            write_dump(os.path.join(folder, dump_name(kind, name, number, 0, stamp)), name, [TensorSpec(INF if number else CLEAN)], [TensorSpec(INF)], host)
            write_record(os.path.join(folder, record_name(number, 0, stamp)), [Part("AIC", 1, 1, 0, number)], version=2)
        (Path(folder) / (".%s.part" % dump_name("Exp", "half", 5, 0, TIME))).write_bytes(b"half")
    manifest().write(os.path.join(root, RUN))
    return root


def csv_tree(root: str) -> str:
    """A device's tree with statistics instead of tensors, an old record, and a manifest in the waiting place."""
    folder = os.path.join(root, RUN, "0", "ge_default_1", "11", "0")
    os.makedirs(folder)
    rows = "Input/Output,Index,Data Size,Data Type,Format,Shape,Max Value,Min Value,Avg Value,Count,Nan Count,Negative Inf Count,Positive Inf Count,L2Norm\n"
    rows += "Input,0,32,DT_FLOAT16,ND,4x4,1.5,-2,0.1,16,0,0,0,3\nOutput,0,32,DT_FLOAT16,ND,4x4,65504,-65504,nan,16,1,0,0,inf\n"
    (Path(folder) / (dump_name("Mul", "net/mul", 21, 3, TIME + 5) + ".csv")).write_text(rows)
    write_record(os.path.join(folder, record_name(1, 5, TIME)), [Part("AI Core", 272, 11, 3, 21)], layout="old")
    manifest(collector="ascend", mode=None, kept_folders=None).write(root)
    return root


def report_texts(folder: str) -> List[bytes]:
    """Saved reports of some trees."""
    made = [host_tree(os.path.join(folder, "host")), csv_tree(os.path.join(folder, "csv"))]
    wanted = ("many_ops_two_steps", "damaged", "eight_devices", "hwcn_fractal_z", "no_overflow", "record_version_1")
    made += [str(CORPUS / name / "dump") for name in wanted]
    return [analyze(tree).to_json().encode("utf-8") for tree in made]


def small_tree(root: str) -> str:
    """One operator, to be read beside a manifest."""
    folder = os.path.join(root, RUN, "0", "graph", "1", "4")
    os.makedirs(folder)
    write_dump(os.path.join(folder, dump_name("Mul", "net/mul", 21, 3, TIME + 5)), "net/mul", [TensorSpec(CLEAN)], [TensorSpec(INF)])
    write_record(os.path.join(folder, record_name(1, 5, TIME)), [Part("AIC", 1, 11, 3, 21)])
    return root
