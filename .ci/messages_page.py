"""Writes the list of all messages into ``docs/troubleshooting.md`` and ``docs/zh/troubleshooting.md``: ``python .ci/messages_page.py``; ``--check`` only compares.

What a page says above the list is written by hand: the messages that people meet, each with cause and cure. The list below has every other one, word by word, with what the
program itself says to do.
"""

from __future__ import annotations

import importlib.util
import re
import string
import sys
from pathlib import Path
from typing import Dict, Tuple

SOURCE = Path(__file__).resolve().parent.parent
if importlib.util.find_spec("npu_overflow") is None:
    sys.path.insert(0, str(SOURCE))

BEGIN, END = "<!-- .ci/messages_page.py writes what follows -->", "<!-- end -->"

HEAD = {
    "en": ("All other messages", "Words in braces stand for values.", "message", "what to do"),
    "zh": ("其余消息", "花括号中的词代表具体的值。", "消息", "处理方法"),
}

#: heading and introduction in both languages, beginnings of codes; the first group that fits takes a message
GROUPS: Tuple[Tuple[Tuple[str, str], Tuple[str, str], Tuple[str, ...]], ...] = (
    (
        ("Wrong usage", "用法错误"),
        (
            "An option or an argument is not what is accepted. Nothing was done; the exit status is 2, in Python it is a `UsageError`.",
            "选项或参数不被接受。未执行任何操作；退出码为 2，在 Python 中为 `UsageError`。",
        ),
        ("option.", "analyze.", "show.tensor", "show.no_", "show.index", "dump_config.action", "dump_config.exclusive", "run.", "merge.nothing", "remote.scheme", "cli.count"),
    ),
    (
        ("Paths, saved reports and lists", "路径、已保存的报告与名单文件"),
        (
            "A file or a folder is not there, can't be read, or is something else. The exit status is 1; no file was changed.",
            "文件或目录不存在、无法读取或不是所需的类型。退出码为 1；没有改动任何文件。",
        ),
        ("path.", "remote.no_", "remote.unreadable", "remote.large", "remote.many", "report.", "merge.missing", "merge.none_in_folder", "merge.no_report", "show.", "mixlist.", "manifest.", "html.", "cli.mixlist.", "cli."),
    ),
    (
        ("Files that can't be written", "无法写入的文件"),
        (
            "What was there before is unchanged, and nothing half written is left under its name. A command ends with status 1, in Python it is a `CannotWrite`; a training goes on.",
            "原有文件不受影响，也不会留下写了一半的文件。命令以退出码 1 结束，在 Python 中为 `CannotWrite`；训练会继续。",
        ),
        ("write.", "tensorboard."),
    ),
    (
        ("On an NPU", "在 NPU 上"),
        (
            "The training goes on in every case. What the device read when it opened can't be changed afterwards: put the fix in front of `npu_device.open()` and start again.",
            "任何情况下训练都会继续。设备打开时读取的配置之后无法更改：请把修正放在 `npu_device.open()` 之前，再重新启动。",
        ),
        ("ascend.", "dump_config.", "watch.blind", "watch.restart", "watch.request"),
    ),
    (
        ("When a step can't be replayed on a CPU or GPU", "在 CPU 或 GPU 上无法重放某一步时"),
        (
            "Watching goes on, and so does the training; no operator is named for that step. Where the message names something inside the step, take it out of the function that the step "
            "calls. Messages on TensorFlow's internals mean that this release lacks something: `npu-overflow doctor` lists what was found.",
            "监视和训练都会继续，只是该步不会给出算子。如果消息指出了该步内部的某项内容，请将其移出该步所调用的函数。提到 TensorFlow 内部接口的消息表示该版本缺少所需的内容：`npu-overflow doctor` 会列出已找到的部分。",
        ),
        ("replay.", "host.", "compat."),
    ),
    (
        ("While training", "训练过程中"),
        ("The watch says these on standard error; none of them ends a training.", "监视器在标准错误输出中给出这些消息；它们都不会结束训练。"),
        ("watch.",),
    ),
    (
        ("Reports without an operator", "没有算子的报告"),
        ("The headline of a report that blames nobody.", "没有指认任何算子的报告标题。"),
        ("reason.", "report.unreadable", "report.absorbed"),
    ),
    (
        ("Problems with files of a dump", "dump 文件的问题"),
        (
            "Listed in the report under the file's name; everything else was analyzed all the same. Where the operator that you look for is concerned: copy the folder again (completely, "
            "with `mapping.csv`), or let the step be dumped again with room on the disk.",
            "在报告中与文件名一同列出；其余内容照常分析。如果涉及所要查找的算子：请重新完整拷贝目录（包括 `mapping.csv`），或在磁盘空间充足时重新 dump 该步。",
        ),
        ("file.", "remote.", "dump.", "record.", "statistics.", "mapping.", "name.", "tree.", "region.", "problem."),
    ),
    (
        ("Remarks", "备注"),
        ("Nothing is wrong; they say how far the report can be trusted.", "并非错误；说明报告的可信程度。"),
        ("remark.", "merge."),
    ),
)

#: beginnings of codes that are no warnings or errors, or only carry another message
OTHER = {
    "cli.": "help texts and words of tables, except those in CLI below",
    "watch.collector.": "the first line of a watched training: nothing is wrong",
    "watch.why.": "a part of that line",
    "watch.trigger": "the line that begins a collection: nothing is wrong",
    "watch.same_culprit": "a short report",
    "watch.rate": "the line at the end of a training: nothing is wrong",
    "watch.restored": "says that it worked",
    "watch.request": "carries another message",
    "run.restarting": "says what happens next",
    "progress.": "progress",
}
CLI = ("cli.count", "cli.os_error", "cli.memory", "cli.internal", "cli.mixlist.strange", "cli.mixlist.conflict", "cli.mixlist.cast", "cli.mixlist.fusion")
CATALOGUES = ("errors", "problems", "watch", "launcher", "commands", "report", "html")
#: of the words of reports only these are messages
REPORT = ("report.reason.", "report.unreadable", "report.absorbed", "html.missing")


def messages() -> Dict[str, Tuple[str, str]]:
    """Code -> sentence in both languages, of everything that warns or complains."""
    found: Dict[str, Tuple[str, str]] = {}
    for name in CATALOGUES:
        for code, pair in importlib.import_module("npu_overflow.messages." + name).TEXTS.items():
            if code.endswith((".hint", ".next", ".title")):
                continue
            if name in ("report", "html") and not code.startswith(REPORT):
                continue
            if code in CLI or not code.startswith(tuple(OTHER)):
                found[code] = pair
    return found


def shown(sentence: str) -> str:
    """A sentence with its values in braces, as plain words, in one line."""
    parts = []
    for text, field, spec, _ in string.Formatter().parse(sentence):
        word = (spec or "").partition("|")[2] or "{%s}" % field  # {count:step|steps}
        parts.append(text + (word if field is not None else ""))
    return " ".join("".join(parts).split("\n")).strip()


def cell(text: str) -> str:
    return "" if not text else shown(text).replace("|", "\\|").replace("<", "&lt;")


def section(language: str, above: str) -> str:
    """The list, without the messages that ``above`` quotes."""
    from npu_overflow import messages as texts

    number = texts.LANGUAGES.index(language)
    quoted = re.findall(r"^> (.+)$", above, re.MULTILINE)
    everything = {code: pair for code, pair in messages().items() if not any(len(pair[number]) > 10 and texts._pattern(pair[number]).match(line) for line in quoted)}
    title, about, message, remedy = HEAD[language]
    lines = ["## " + title, "", about, ""]
    for heading, intro, _ in GROUPS:
        members = [code for code in everything if group_of(code) == heading[0]]
        hints = [next((texts.say(code + end, language) for end in (".hint", ".next") if texts.known(code + end)), "") for code in members]
        said = ["`%s`" % shown(everything[code][number]).replace("`", "'") for code in members]
        lines += ["### " + heading[number], "", intro[number], ""]
        if any(hints):
            lines += ["| %s | %s |" % (message, remedy), "| --- | --- |"]
            lines += ["| %s | %s |" % (text.replace("|", "\\|"), cell(hint)) for text, hint in zip(said, hints)]
        else:
            lines += ["- " + text for text in said]
        lines.append("")
    return "\n".join(lines)


def group_of(code: str) -> str:
    """English heading of the group that a message belongs to."""
    name = "reason." if code.startswith(("report.reason.", "report.unreadable", "report.absorbed")) else code
    for heading, _, codes in GROUPS:
        if name.startswith(codes):
            return heading[0]
    raise SystemExit("no group takes the message %s: add it to one in .ci/messages_page.py" % code)


def page(language: str, text: str) -> str:
    """The page with its list renewed."""
    above, _, rest = text.partition(BEGIN)
    _, _, below = rest.partition(END)
    return "%s%s\n\n%s%s%s" % (above, BEGIN, section(language, above + below), END, below)


def main(check: bool) -> int:
    wrong = 0
    for language, folder in (("en", SOURCE / "docs"), ("zh", SOURCE / "docs" / "zh")):
        target = folder / "troubleshooting.md"
        before = target.read_text(encoding="utf-8")
        after = page(language, before)
        if not check:
            target.write_text(after, encoding="utf-8")
        elif before != after:
            wrong += 1
            print("%s is not what .ci/messages_page.py makes" % target)
    return wrong


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv) > 0)
