"""Sentences of errors: what came, what is accepted; ``CODE.hint`` says what to do next."""
from __future__ import annotations

from typing import Dict, Tuple

TEXTS: Dict[str, Tuple[str, str]] = {
    "option.unknown": ("Unknown option {name!r}. Known options: {known}.", "未知选项 {name!r}。可用选项：{known}。"),
    "option.size": (
        "{name} is {value}; accepted is a number of bytes above 0, or text such as '256MB' or '2GiB'.",
        "{name} 的值为 {value}；应为大于 0 的字节数，或 '256MB'、'2GiB' 这样的文本。",
    ),
    "option.whole": (
        "{name} is {value}; accepted is a whole number of at least {least}.",
        "{name} 的值为 {value}；应为不小于 {least} 的整数。",
    ),
    "option.number": ("{name} is {value}; accepted is a number of at least 0.", "{name} 的值为 {value}；应为不小于 0 的数。"),
    "option.number_above": ("{name} is {value}; accepted is a number above 0.", "{name} 的值为 {value}；应为大于 0 的数。"),
    "option.choice": ("{name} is {value}; accepted: {accepted}.", "{name} 的值为 {value}；可选值：{accepted}。"),
    "option.steps": (
        "{name} is {value}; accepted is a list of training steps, such as [119, 120].",
        "{name} 的值为 {value}；应为训练步的列表，例如 [119, 120]。",
    ),
    "option.many_steps": (
        "{name} names more than {most} training steps; accepted are at most {most}.",
        "{name} 给出的训练步超过 {most} 个；最多可给出 {most} 个。",
    ),
    "option.empty_range": (
        "{name} is {value}; its range {part} holds no step. Accepted are steps and ranges whose end is not in them, such as 40,41 or 40:50 (40 to 49).",
        "{name} 的值为 {value}；其中的范围 {part} 不含任何训练步。可给出训练步或不含末尾的范围，例如 40,41 或 40:50（第 40 至 49 步）。",
    ),
    "option.optimizer": (
        "{name} is {value}; accepted is an optimizer (an object with apply_gradients or apply), a list of them, or None.",
        "{name} 的值为 {value}；应为优化器（具有 apply_gradients 或 apply 方法的对象）、优化器的列表或 None。",
    ),
    "option.folder": (
        "{name} is {value}; accepted is the path of a folder, as text or pathlib.Path.",
        "{name} 的值为 {value}；应为目录路径，类型为字符串或 pathlib.Path。",
    ),
    "option.url": (
        "{name} is {value}, a URL; accepted is the path of a local folder, as files are written to the local file system.",
        "{name} 的值为 {value}，是 URL；应为本地目录路径，文件只写入本地文件系统。",
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
    "report.large": ("The file has {bytes} bytes; reports of at most {most} are read.", "文件有 {bytes} 字节；报告最多读取 {most} 字节。"),
    "report.wrong_field": ("The report's field {field} is {value}, which is of another type.", "报告字段 {field} 的值为 {value}，类型不符。"),
    "write.full": ("{path} can't be written: the disk is full.", "无法写入 {path}：磁盘已满。"),
    "write.full.hint": (
        "Make room on that disk, or give a path on another one. Nothing half written was left.",
        "请清理磁盘空间，或改用其他磁盘上的路径。没有留下写了一半的文件。",
    ),
    "write.quota": ("{path} can't be written: your disk quota is used up.", "无法写入 {path}：磁盘配额已用尽。"),
    "write.quota.hint": (
        "Remove files of your own there, have the quota raised, or give a path on another disk. Nothing half written was left.",
        "请删除自己在该处的文件、申请提高配额，或改用其他磁盘上的路径。没有留下写了一半的文件。",
    ),
    "write.read_only": ("{path} can't be written: the file system is read-only.", "无法写入 {path}：文件系统为只读。"),
    "write.read_only.hint": ("Give a path on a disk that can be written.", "请改用可写磁盘上的路径。"),
    "write.denied": ("{path} can't be written: permission denied.", "无法写入 {path}：没有权限。"),
    "write.denied.hint": (
        "Give a path in a folder of your own, or have the folder's permissions changed.",
        "请改用自己目录下的路径，或修改该目录的权限。",
    ),
    "write.long": ("{path} can't be written: the path is too long.", "无法写入 {path}：路径过长。"),
    "write.long.hint": ("Give a shorter name, or a folder nearer to the root.", "请使用更短的文件名，或层级更浅的目录。"),
    "write.no_folder": ("{path} can't be written: its folder does not exist.", "无法写入 {path}：所在目录不存在。"),
    "write.no_folder.hint": ("Make the folder first, or give another path.", "请先创建该目录，或改用其他路径。"),
    "write.is_folder": ("{path} can't be written: it is a folder.", "无法写入 {path}：它是一个目录。"),
    "write.is_folder.hint": ("Give the name of a file.", "请给出文件名。"),
    "write.large": (
        "{path} can't be written: the file is larger than the file system or a limit (ulimit -f) allows.",
        "无法写入 {path}：文件超过文件系统或 ulimit -f 的上限。",
    ),
    "write.large.hint": ("Raise the limit, or give a path on another disk.", "请提高上限，或改用其他磁盘上的路径。"),
    "write.other": ("{path} can't be written: {reason}.", "无法写入 {path}：{reason}。"),
    "write.other.hint": ("Give another path, or mend what the message says.", "请改用其他路径，或先解决上述问题。"),
    "remote.no_fsspec": ("{url} is a URL; reading it takes the package fsspec, which is not installed.", "{url} 是 URL；读取它需要 fsspec，但尚未安装。"),
    "remote.no_fsspec.hint": ("Install it: {command}", "请安装：{command}"),
    "remote.no_driver": ("{url} can't be read: the package for {scheme} is not installed ({reason}).", "无法读取 {url}：未安装访问 {scheme} 所需的包（{reason}）。"),
    "remote.no_driver.hint": ("Install the package that the message names.", "请安装上述消息中提到的包。"),
    "remote.scheme": ("{url} has the unknown scheme {scheme}. Known: {known}.", "{url} 的协议 {scheme} 未知。可用：{known}。"),
    "remote.unreadable": ("{path} can't be read: {reason}.", "无法读取 {path}：{reason}。"),
    "remote.unreadable.hint": ("Check the URL, the network and the credentials of the store.", "请检查 URL、网络以及该存储的访问凭据。"),
    "remote.large_file": ("{path} has more than {most} bytes; it was not read.", "{path} 超过 {most} 字节，未读取。"),
    "remote.large": ("The records at {path} have more than {most} bytes.", "{path} 处的溢出记录超过 {most} 字节。"),
    "remote.large.hint": ("Raise --max-download, or give a folder further down.", "请增大 --max-download，或给出更深一层的目录。"),
    "remote.many": ("{path} holds over {most} files.", "{path} 中的文件超过 {most} 个。"),
    "remote.many.hint": ("Give a folder further down, such as one run.", "请给出更深一层的目录，例如某一次运行。"),
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
    "replay.internals": (
        "this TensorFlow lacks what the replay needs ({name}).",
        "此版本的 TensorFlow 缺少重放所需的内部接口（{name}）。",
    ),
    "replay.internals.hint": (
        "npu-overflow doctor lists what was found; supported are TensorFlow 2.6 to 2.21.",
        "npu-overflow doctor 会列出已找到的接口；支持 TensorFlow 2.6 至 2.21。",
    ),
    "replay.raised": ("run again, operator by operator, it raises {error}", "逐算子重新执行时抛出 {error}"),
    "replay.outside": (
        "it uses something outside the training ({op}), which running it again would change or wait for. To collect, move that out "
        "of the function.",
        "该步使用了训练之外的资源（{op}），重新执行会改变它或一直等待。如需采集，请将其移到函数之外。",
    ),
    "replay.python": (
        "it calls Python functions ({op}: tf.py_function or tf.numpy_function), which are not run a second time. To collect, "
        "replace them by TensorFlow operators or move them into the pipeline.",
        "该步会调用 Python 函数（{op}：tf.py_function 或 tf.numpy_function），工具不会再次执行它们。"
        "如需采集，请改用 TensorFlow 算子，或将其移入输入流水线。",
    ),
    "replay.draws": (
        "it draws from an input pipeline inside the function ({op}), often for many steps in one call. To collect, give the "
        "function one batch, or set the option that takes one step a call (steps_per_loop=1, steps_per_execution=1).",
        "该步在函数内部从输入流水线取数（{op}），往往一次调用执行多步。如需采集，请把一个批次作为参数传给函数，"
        "或设置每次调用只执行一步的选项（steps_per_loop=1、steps_per_execution=1）。",
    ),
    "replay.many_steps": (
        "one call runs {steps} steps; at most {most} can be recorded. Lower steps_per_execution.",
        "一次调用执行 {steps} 步，最多可记录 {most} 步。请减小 steps_per_execution。",
    ),
    "replay.memory": (
        "what the step takes from outside is larger than max_memory. Raise max_memory.",
        "该步从外部取用的数据超过 max_memory。请增大 max_memory。",
    ),
    "replay.begin": (
        "the value of {name} when the step began is not known: it is larger than max_memory, or the step is the first that was "
        "recorded. Later steps tell more; raise max_memory if they don't.",
        "无法得知该步开始时 {name} 的值：它超过 max_memory，或该步是记录的第一步。后续步会提供更多信息；否则请增大 max_memory。",
    ),
    "replay.incomplete": ("a part of it ran before the recording began.", "其中一部分在开始记录之前已执行。"),
    "replay.gone": ("TensorFlow no longer has its function {op}.", "TensorFlow 中已不存在其函数 {op}。"),
    "replay.too_long": ("running it again takes longer than max_collect_seconds", "重新执行所需时间超过 max_collect_seconds"),
    "replay.collective": (
        "it communicates with other workers ({op}), who would wait for a step that never comes. To collect, run the model in one process.",
        "该步要与其他 worker 通信（{op}），对方会一直等待不会到来的步。如需采集，请在单进程中运行模型。",
    ),
    "replay.distributed": (
        "its batches come from a distributed iterator, which can't be fed by hand. To collect, use one device, or MirroredStrategy "
        "with one step a call.",
        "其数据来自分布式迭代器，无法手动喂入。如需采集，请使用单设备，或在 MirroredStrategy 下每次调用只执行一步。",
    ),
    "host.backend": (
        "this Keras runs on {backend}; collecting works with the TensorFlow backend only.",
        "当前 Keras 的后端是 {backend}；仅 TensorFlow 后端支持采集。",
    ),
    "host.backend.hint": (
        "npu-overflow analyze reads dumps made elsewhere.",
        "npu-overflow analyze 可分析在别处生成的 dump。",
    ),
    "host.graph_mode": (
        "TensorFlow runs in graph mode (v1 sessions or Estimators); collecting needs TensorFlow 2 eager mode.",
        "TensorFlow 处于图模式（v1 会话或 Estimator）；采集需要 TensorFlow 2 的即时模式。",
    ),
    "host.graph_mode.hint": (
        "npu-overflow analyze reads dumps made elsewhere.",
        "npu-overflow analyze 可分析在别处生成的 dump。",
    ),
    "host.strategy": (
        "under {strategy} steps can't be replayed in this process.",
        "在 {strategy} 下，无法在本进程中重放训练步。",
    ),
    "host.strategy.hint": (
        "run the model on one device, or under MirroredStrategy, to collect; npu-overflow analyze reads dumps made elsewhere.",
        "请在单设备或 MirroredStrategy 下运行模型进行采集；npu-overflow analyze 可分析在别处生成的 dump。",
    ),
    "host.workers": (
        "under {strategy} with several workers a replayed step would wait for the others.",
        "在多 worker 的 {strategy} 下，重放的训练步会等待其他 worker。",
    ),
    "host.workers.hint": (
        "run the model in one process to collect; npu-overflow analyze reads dumps made elsewhere.",
        "请在单进程中运行模型进行采集；npu-overflow analyze 可分析在别处生成的 dump。",
    ),
    "analyze.html_one": ("--html writes one report, but {count} paths were given.", "--html 只写一份报告，但给出了 {count} 个路径。"),
    "analyze.html_one.hint": ("Give one path, or run the command once for each.", "请只给一个路径，或对每个路径分别运行。"),
    "mixlist.host": (
        "No file for modify_mixlist can be made from {path}: it lists operator types of CANN, and this tree comes from TensorFlow's own operators.",
        "无法由 {path} 生成 modify_mixlist 文件：该文件列出的是 CANN 算子类型，而这份数据来自 TensorFlow 自身的算子。",
    ),
    "mixlist.host.hint": (
        'On a CPU or GPU use dtype="float32" on the Keras layer, as printed above. For the file, analyze a dump that an NPU wrote.',
        '在 CPU 或 GPU 上请如上所示给 Keras 层设置 dtype="float32"。如需该文件，请分析 NPU 写出的 dump。',
    ),
    "mixlist.nothing": (
        "No operator in {path} made an overflow itself in float16: there is nothing to keep in float32.",
        "{path} 中没有在 float16 下自身产生溢出的算子：无需让任何算子保持 float32。",
    ),
    "mixlist.nothing.hint": ("npu-overflow analyze says what there is.", "npu-overflow analyze 可查看其中的内容。"),
    "mixlist.not_json": ("The existing output file is no mixed-precision list: {reason}.", "已存在的输出文件不是混合精度名单：{reason}。"),
    "mixlist.not_json.hint": ("It was left as it is. Give another file with --output.", "原文件未改动。请用 --output 指定其他文件。"),
    "mixlist.shape": (
        "In the existing output file {name} has another form than modify_mixlist takes.",
        "已存在的输出文件中，{name} 的格式与 modify_mixlist 的要求不符。",
    ),
    "mixlist.shape.hint": ("It was left as it is. Mend it, or give another file with --output.", "原文件未改动。请修正该文件，或用 --output 指定其他文件。"),
    "show.folder": ("{path} is a folder; show takes one file.", "{path} 是目录；show 只接受单个文件。"),
    "show.folder.hint": ("For a folder: npu-overflow analyze {path}", "目录请使用：npu-overflow analyze {path}"),
    "show.file": ("{path} can't be shown. {reason}", "无法显示 {path}。{reason}"),
    "show.file.hint": (
        "Accepted are operator dumps, overflow records, .npy files and saved JSON reports.",
        "可接受算子 dump、溢出记录、.npy 文件和已保存的 JSON 报告。",
    ),
    "show.npy": ("It is no array that numpy can load without pickle: {reason}.", "它不是 numpy 可在不使用 pickle 的情况下加载的数组：{reason}。"),
    "show.tensor": ("There is no tensor {name} here; accepted: {known}.", "此处没有张量 {name}；可选：{known}。"),
    "show.no_tensors": ("This file holds no tensors; --tensor, --index and --save need some.", "该文件不含张量，无法使用 --tensor、--index 和 --save。"),
    "show.index": (
        "The index {index} does not fit the shape {shape}; accepted are numbers and ranges separated by commas, such as 3,:,0:8.",
        "索引 {index} 与形状 {shape} 不符；应为以逗号分隔的数字和范围，例如 3,:,0:8。",
    ),
    "show.index_which": (
        "--index needs one tensor: give it with --tensor. Here are: {known}.",
        "--index 需要指定一个张量：请用 --tensor 给出。可选：{known}。",
    ),
    "show.no_values": ("{name} has no values to show: {reason}.", "{name} 没有可显示的值：{reason}。"),
    "dump_config.action": (
        "Unknown action {action!r}; accepted: {accepted}, several joined with '|'.",
        "未知的 action {action!r}；可选值：{accepted}，多个用 '|' 连接。",
    ),
    "dump_config.exclusive": ("{one!r} and {other!r} exclude each other.", "{one!r} 与 {other!r} 不能同时使用。"),
    "dump_config.exclusive.hint": ("Choose one of them.", "请二选一。"),
    "dump_config.too_late": (
        "The device is open already; it reads its options once, when it opens, so the dump can't be switched on any more.",
        "设备已经打开；设备只在打开时读取一次选项，此时已无法再开启 dump。",
    ),
    "dump_config.too_late.hint": (
        "Call npu_overflow.npu_device_dump_config(npu_device) before npu_device.open() and start the training anew.",
        "请在 npu_device.open() 之前调用 npu_overflow.npu_device_dump_config(npu_device)，然后重新启动训练。",
    ),
    "dump_config.no_overflow_dump": (
        "This version of npu_device has no overflow dump (no option dump_config.enable_dump_debug).",
        "当前版本的 npu_device 不支持溢出 dump（没有 dump_config.enable_dump_debug 选项）。",
    ),
    "dump_config.no_overflow_dump.hint": ("Install a newer one.", "请安装更新的版本。"),
    "dump_config.no_option": ("This version of npu_device has no option {option}.", "当前版本的 npu_device 没有选项 {option}。"),
    "dump_config.other_dump": (
        "The option dump_config.{other} is on; the device refuses the dump of all operators and the overflow dump together.",
        "选项 dump_config.{other} 已开启；设备不允许同时开启全量算子 dump 与溢出 dump。",
    ),
    "dump_config.other_dump.hint": ("Switch it off before npu_device.open().", "请在 npu_device.open() 之前将其关闭。"),
    "dump_config.unwritable": ("{path} can't be written: {reason}.", "无法写入 {path}：{reason}。"),
    "dump_config.unwritable.hint": (
        "Give another dump_path; it must be readable and writable, on a disk with room.",
        "请指定其他 dump_path；该目录须可读写，且磁盘空间充足。",
    ),
    "ascend.no_adapter": (
        "The Ascend collector needs npu_device, which this process has not loaded.",
        "Ascend 采集器需要 npu_device，但当前进程没有加载它。",
    ),
    "ascend.no_adapter.hint": (
        "Import npu_device and open the device before the training, or use collector='host' on a CPU or GPU.",
        "请在训练前导入 npu_device 并打开设备；在 CPU 或 GPU 上请使用 collector='host'。",
    ),
    "ascend.opened_without_dump": (
        "The device was opened without the overflow dump, and reads its options only when it opens: "
        "the operators that overflow can't be collected in this process.",
        "设备打开时没有开启溢出 dump，而设备只在打开时读取选项：当前进程无法采集溢出算子。",
    ),
    "ascend.opened_without_dump.hint": (
        "Call npu_overflow.npu_device_dump_config(npu_device) before npu_device.open() and start the training anew.",
        "请在 npu_device.open() 之前调用 npu_overflow.npu_device_dump_config(npu_device)，然后重新启动训练。",
    ),
    "demo.tensorflow": ("The demo trains a model and needs TensorFlow, which is not installed.", "demo 需要训练模型，但未安装 TensorFlow。"),
    "demo.tensorflow.hint": (
        "pip install 'npu_overflow[tensorflow]' installs one that fits this Python.",
        "pip install 'npu_overflow[tensorflow]' 会安装适合当前 Python 的版本。",
    ),
}
