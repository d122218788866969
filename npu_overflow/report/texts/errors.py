"""Sentences of errors: what came, what is accepted; ``CODE.hint`` says what to do next."""
from __future__ import annotations

from typing import Dict, Tuple

TEXTS: Dict[str, Tuple[str, str]] = {
    "option.unknown": ("Unknown option {name!r}. Known options: {known}.", "未知选项 {name!r}。可用选项：{known}。"),
    "option.not_built": ("The option {name!r} is not built yet in this version.", "选项 {name!r} 在此版本中尚未实现。"),
    "option.size": (
        "{name} is {value}; accepted is a number of bytes above 0, or text such as '256MB' or '2GiB'.",
        "{name} 的值为 {value}；应为大于 0 的字节数，或 '256MB'、'2GiB' 这样的文本。",
    ),
    "option.whole": (
        "{name} is {value}; accepted is a whole number of at least {least}.",
        "{name} 的值为 {value}；应为不小于 {least} 的整数。",
    ),
    "option.number": ("{name} is {value}; accepted is a number of at least 0.", "{name} 的值为 {value}；应为不小于 0 的数。"),
    "option.choice": ("{name} is {value}; accepted: {accepted}.", "{name} 的值为 {value}；可选值：{accepted}。"),
    "option.steps": (
        "{name} is {value}; accepted is a list of training steps, such as [119, 120].",
        "{name} 的值为 {value}；应为训练步的列表，例如 [119, 120]。",
    ),
    "option.callable": (
        "{name} is {value}; accepted is a function that takes a Report.",
        "{name} 的值为 {value}；应为接收一个 Report 的函数。",
    ),
    "report.not_json": ("This is not a JSON report: {why}.", "这不是 JSON 报告：{why}。"),
    "report.not_report": (
        "This JSON is no report of npu_overflow; accepted is what 'npu-overflow analyze --json' or Report.to_json wrote.",
        "该 JSON 不是 npu_overflow 的报告；应为 'npu-overflow analyze --json' 或 Report.to_json 的输出。",
    ),
    "report.missing": ("The report lacks the field {field}.", "报告缺少字段 {field}。"),
    "report.wrong_field": ("The report's field {field} is {value}, which is of another type.", "报告字段 {field} 的值为 {value}，类型不符。"),
    "path.missing": ("There is no {path}.", "{path} 不存在。"),
    "path.missing.hint": (
        "Give the dump_path of the training, a folder in it, or one file.",
        "请给出训练的 dump_path、其中的某个目录或单个文件。",
    ),
    "path.unreadable": ("{path} can't be read: {reason}.", "无法读取 {path}：{reason}。"),
    "path.unreadable.hint": ("Check its permissions.", "请检查访问权限。"),
    "path.special": ("{path} is a FIFO, socket or device.", "{path} 是管道、套接字或设备。"),
    "path.special.hint": ("Accepted is a folder of dumps or one dump file.", "应为 dump 目录或单个 dump 文件。"),
    "path.no_dump": (
        "{path} holds no dump file; what lies there is of another kind, such as {example}.",
        "{path} 中没有 dump 文件，只有其他类型的文件，例如 {example}。",
    ),
    "path.no_dump.hint": (
        "Give the dump_path of the training: the folder that holds {{time}}/{{device_id}}/…",
        "请给出训练的 dump_path，即包含 {{time}}/{{device_id}}/… 的目录。",
    ),
    "path.not_a_dump": ("{path} is no dump file by its name.", "从文件名看，{path} 不是 dump 文件。"),
    "path.not_a_dump.hint": (
        "Names are OpType.op_name.task_id.stream_id.timestamp; a name that is only a number needs mapping.csv beside it.",
        "文件名格式为 OpType.op_name.task_id.stream_id.timestamp；仅为数字的文件名需要同目录的 mapping.csv。",
    ),
    "path.no_run": ("There is no run {run}. Runs here: {known}.", "没有名为 {run} 的运行。可用的运行：{known}。"),
}
