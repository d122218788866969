"""Problems of single files and remarks of a report."""
from __future__ import annotations

from typing import Dict, Tuple

TEXTS: Dict[str, Tuple[str, str]] = {
    "manifest.unreadable": ("The record of the watch can't be read: {reason}.", "无法读取监视记录：{reason}。"),
    "file.gone": ("The file is gone.", "文件已不存在。"),
    "file.unreadable": ("The file can't be read: {reason}.", "无法读取文件：{reason}。"),
    "file.special": ("This is no regular file (a FIFO, socket or device); it was not opened.", "不是普通文件（管道、套接字或设备），未打开。"),
    "file.link": ("This link leads out of the folder; it was not followed.", "该链接指向目录之外，未跟随。"),
    "file.link_nowhere": ("This link leads nowhere, or in a circle.", "该链接没有指向任何文件，或形成循环。"),
    "file.shrank": ("The file became shorter while it was read.", "读取过程中文件变短。"),
    "file.replaced": ("Another file took this one's place while it was analyzed.", "分析过程中文件被另一个文件替换。"),
    "remote.left_out": (
        "The file has {bytes} bytes and was not brought here: that is more than --max-download ({most} bytes in all) leaves.",
        "文件有 {bytes} 字节，未取回：超出了 --max-download（共 {most} 字节）的余量。",
    ),
    "remote.not_read": ("The file can't be brought here: {reason}.", "无法取回文件：{reason}。"),
    "remote.refused": (
        "left out: {name} can't be read, is no safe file name, lies too deep, or is a link",
        "已略去：{name} 无法读取、不是安全的文件名、层级过深，或是链接",
    ),
    "remote.refused_more": ("left out for the same reason: {count} more", "因同样原因略去：另有 {count} 个"),
    "file.empty": ("The file is empty.", "文件为空。"),
    "dump.short": ("The file has {bytes} bytes; a dump begins with 8 bytes of length.", "文件只有 {bytes} 字节；dump 文件以 8 字节的长度开头。"),
    "dump.header_length": (
        "The header is said to have {length} bytes, more than the file's {size}: no dump, or damaged.",
        "文件头声明长度为 {length} 字节，超出文件大小 {size} 字节：不是 dump 文件或已损坏。",
    ),
    "dump.header_large": ("The header is said to have {length} bytes; at most {most} are read.", "文件头声明长度为 {length} 字节；最多读取 {most} 字节。"),
    "dump.header": ("The header ({length} bytes) can't be read: no dump, or damaged.", "文件头（{length} 字节）无法解析：不是 dump 文件或已损坏。"),
    "dump.tensors": ("The header names {count} tensors; at most {most} are read.", "文件头声明了 {count} 个张量；最多读取 {most} 个。"),
    "dump.axes": ("A tensor has {count} axes; at most {most} are read.", "某个张量有 {count} 个维度；最多支持 {most} 个。"),
    "dump.cut": (
        "The file has {bytes} bytes of {expected}: cut, or still being written. Whole tensors are shown.",
        "文件有 {bytes} 字节，应为 {expected} 字节：被截断或仍在写入。完整的张量仍会显示。",
    ),
    "dump.excess": ("The file has {bytes} bytes, more than the {expected} that its header tells.", "文件有 {bytes} 字节，多于文件头所述的 {expected} 字节。"),
    "dump.tensor_short": ("The shape of {tensor} needs {needed} bytes, the file has {bytes} of it.", "{tensor} 的形状需要 {needed} 字节，文件中只有 {bytes} 字节。"),
    "dump.host": (
        "What the host collector wrote into the file ({bytes} bytes) is no JSON that it writes; tensors are shown, the rest is not known.",
        "主机采集器写入文件的信息（{bytes} 字节）不是其应有的 JSON；张量仍会显示，其余信息未知。",
    ),
    "dump.name_long": (
        "The operator's name has {bytes} bytes; its first {most} are shown.",
        "算子名称有 {bytes} 字节；只显示前 {most} 字节。",
    ),
    "record.short": ("The record has {bytes} bytes of at least {needed}.", "溢出记录有 {bytes} 字节，至少应有 {needed} 字节。"),
    "record.no_output": ("The file has no output that could hold a record.", "文件中没有可存放溢出记录的输出。"),
    "record.cut": ("The record has {bytes} bytes of {size}: cut, or still being written.", "溢出记录有 {bytes} 字节，应为 {size} 字节：被截断或仍在写入。"),
    "record.acc_type": ("The record is of the unknown type {number}; its ids and status are a guess by custom.", "溢出记录类型 {number} 未知；其 ID 和状态按惯例解析。"),
    "record.data_len": ("The record's length {data_len} fits no status.", "溢出记录的长度 {data_len} 与状态字不符。"),
    "record.not_valid": ("The record is not marked as valid ({valid}).", "溢出记录未标记为有效（{valid}）。"),
    "record.nothing": ("The record reports no overflow: every status is 0.", "溢出记录未报告溢出：所有状态均为 0。"),
    "statistics.large": ("The file has {bytes} bytes; statistics of at most {most} are read.", "文件有 {bytes} 字节；统计文件最多读取 {most} 字节。"),
    "statistics.header": ("The first row has no columns Input/Output and Index: no statistics file.", "首行缺少 Input/Output 和 Index 列：不是统计文件。"),
    "statistics.rows": ("The rows can't be read: {reason}.", "无法读取各行：{reason}。"),
    "statistics.rows_skipped": ("Rows that can't be read: {count}.", "无法读取的行数：{count}。"),
    "mapping.large": ("The file has over {most} bytes; it was not read.", "文件超过 {most} 字节，未读取。"),
    "name.unreadable": ("The name is none of a dump file.", "文件名不符合 dump 文件的命名规则。"),
    "name.hashed": ("The name is a number and mapping.csv beside it does not tell the real one.", "文件名是一个数字，同目录的 mapping.csv 中没有对应的真实文件名。"),
    "tree.deep": ("This folder lies more than {most} levels deep; it was not searched.", "该目录层级超过 {most} 层，未搜索。"),
    "tree.many": ("The folder holds over {most} files; the rest was not looked at.", "目录中的文件超过 {most} 个，其余未处理。"),
    "tree.unlisted": ("The folder can't be listed: {reason}.", "无法列出目录：{reason}。"),
    "region.unknown_format": ("The memory format is private and not known here: padding counts as data.", "内存格式为未知的私有格式：填充部分按数据计算。"),
    "region.groups": ("FRACTAL_Z with groups has another layout: padding counts as data.", "带分组的 FRACTAL_Z 布局不同：填充部分按数据计算。"),
    "region.no_original_shape": ("The file does not tell the original shape: padding counts as data.", "文件未给出原始形状：填充部分按数据计算。"),
    "region.no_fit": ("The original shape fits no known layout: padding counts as data.", "原始形状与已知布局均不匹配：填充部分按数据计算。"),
    # what the analysis says of single files
    "problem.no_dump": (
        "No dump of the operator (task {task}, stream {stream}) that this record reports lies beside it.",
        "该记录所报告的算子（task {task}，stream {stream}）在同一目录下没有对应的 dump 文件。",
    ),
    "problem.clock_set": (
        "Times and steps disagree: step {before} follows step {step} in time. The clock was set; here the steps decide the order.",
        "时间与步序不一致：按时间第 {before} 步排在第 {step} 步之后。系统时钟被调整过；此处以步序为准。",
    ),
    # remarks
    "remark.first_records": (
        "Only the first {read} of {total} overflow records were read, as --limit asked for few operators: steps are not counted over all of them.",
        "按 --limit 的要求只读取了 {total} 条溢出记录中的前 {read} 条：步数统计未覆盖全部记录。",
    ),
    "remark.sporadic": (
        "{count} {count:record|records} of single overflows before the collection {count:is|are} left out; --run all shows them too.",
        "已略去采集之前偶发溢出的 {count} 条记录；使用 --run all 可一并显示。",
    ),
    "remark.clocks_close": (
        "The first overflows of devices {devices} lie within 10 ms of each other: clocks of devices differ, so which came first is not certain.",
        "设备 {devices} 的首次溢出相差不到 10 毫秒：各设备时钟存在偏差，先后顺序无法确定。",
    ),
    "remark.maybe_saturation": (
        "{name} holds the largest value of its type, and neither Inf nor NaN: could be saturation mode: try --mode saturation",
        "{name} 中含有该类型的最大值，但没有 Inf 或 NaN：可能是饱和模式，请尝试 --mode saturation",
    ),
    "remark.mode_known": (
        "The overflow mode is {mode}, as the run itself recorded; {given} was not used.",
        "溢出模式为 {mode}（训练时的记录）；未采用指定的 {given}。",
    ),
    "remark.unfinished": (
        "Step {step} unfinished: its operators were still being written, or the process ended before they were; they are not shown.",
        "第 {step} 步未完成：其算子数据仍在写入，或进程在写完之前已结束，这些算子未显示。",
    ),
    "remark.growing": (
        "{count} {count:file was|files were} still being written, the first is {file}: what is in there is left out. Analyze again once all is written.",
        "有 {count} 个文件仍在写入，第一个为 {file}：其内容未计入。写完后请重新分析。",
    ),
    "remark.interrupted.listing": (
        "Interrupted while files were being looked for: what lies in the other folders is not known.",
        "查找文件时被中断：其余目录的内容未知。",
    ),
    "remark.interrupted.records": (
        "Interrupted: {done} of {total} overflow records were read, and the first finding among them was opened.",
        "已中断：已读取 {done}/{total} 条溢出记录，并打开了其中的首个溢出算子。",
    ),
    "remark.interrupted": ("Interrupted: {done} of {total} operators were read.", "已中断：已读取 {done}/{total} 个算子。"),
    "remark.statistics": (
        "Some dumps hold statistics only: which element overflowed first can't be told, and counts at the largest value are at least 1.",
        "部分 dump 只有统计值：无法得知首个溢出元素，达到最大值的元素个数为下限（至少 1 个）。",
    ),
    "remark.region.unknown_format": (
        "{format} is a private memory format that is not known here ({tensors} {tensors:tensor|tensors}): padding counts as data.",
        "{format} 是未知的私有内存格式（{tensors} 个张量）：填充按有效数据计。",
    ),
    "remark.region.groups": (
        "{format} with groups has another layout ({tensors} {tensors:tensor|tensors}): padding counts as data.",
        "带分组的 {format} 布局不同（{tensors} 个张量）：填充按有效数据计。",
    ),
    "remark.region.no_original_shape": (
        "{tensors} {tensors:tensor|tensors} in {format} {tensors:comes|come} without {tensors:its|their} original shape: padding counts as data.",
        "{tensors} 个 {format} 格式的张量没有原始形状：填充按有效数据计。",
    ),
    "remark.region.no_fit": (
        "The original shape of {tensors} {tensors:tensor|tensors} in {format} fits no known layout: padding counts as data.",
        "{tensors} 个 {format} 格式张量的原始形状与已知布局均不符：填充按有效数据计。",
    ),
    "remark.record.not_valid": (
        "{count} {count:record is|records are} not marked as valid, the first is {file}.",
        "{count} 条溢出记录未标记为有效，第一条为 {file}。",
    ),
    "remark.record.nothing": (
        "{count} {count:record reports|records report} no overflow (every status is 0), the first is {file}.",
        "{count} 条溢出记录未报告溢出（状态均为 0），第一条为 {file}。",
    ),
    "progress.listing": ("npu-overflow: {done} files found", "npu-overflow：已找到 {done} 个文件"),
    "progress.fetched": ("npu-overflow: {done} of {total} files brought here", "npu-overflow：已取回 {done}/{total} 个文件"),
    "progress.reports": ("npu-overflow: {done} reports read", "npu-overflow：已读取 {done} 份报告"),
    "progress.tensors": ("npu-overflow: {done} of {total} tensors read", "npu-overflow：已读取 {done}/{total} 个张量"),
    "progress.bytes": (", {done} of {total}", "，{done}/{total}"),
    "progress.left": (", about {time} left", "，约剩 {time}"),
    "progress.seconds": ("{count} s", "{count} 秒"),
    "progress.minutes": ("{count} min", "{count} 分钟"),
    "progress.hours": ("{count} h", "{count} 小时"),
    "progress.records": ("npu-overflow: {done} of {total} records read", "npu-overflow：已读取 {done}/{total} 条溢出记录"),
    "progress.operators": ("npu-overflow: {done} of {total} operators read", "npu-overflow：已读取 {done}/{total} 个算子"),
}
