"""What ``npu-overflow run``, restarts and trainings of several ranks say."""
from __future__ import annotations

from typing import Dict, Tuple

TEXTS: Dict[str, Tuple[str, str]] = {
    "cli.run.help": (
        "start a training script under the watch, without a change to it",
        "在监视下启动训练脚本，脚本无需任何修改",
    ),
    "cli.run.about": (
        "Starts a training script (or a module with -m) with the watch on every fit and every training loop and, on Ascend, with the overflow dump "
        "configured before the device opens. Exit status and signals stay the script's. Options stand before the script; -- ends them.",
        "启动训练脚本（或用 -m 启动模块）：自动监视每个 fit 和每个训练循环；在昇腾设备上，会在设备打开前配置溢出 dump。退出码和信号均与脚本一致。"
        "选项写在脚本之前，-- 表示选项结束。",
    ),
    "cli.run.script": ("the script, followed by its own arguments", "要运行的脚本，其后为脚本自身的参数"),
    "cli.run.module": ("run a module as python -m does; its arguments follow", "以 python -m 的方式运行模块，其后为模块自身的参数"),
    "cli.run.restart": (
        "on Ascend: leave the dump off at first; once overflow is frequent start the script once more, from its own command line, with the dump on "
        "(one rank only)",
        "昇腾设备：起初不开启 dump；一旦溢出频繁，便以原命令行重新启动脚本一次并开启 dump（仅限单个 rank）",
    ),
    "cli.run.option.patience": ("overflows within the window that are frequent (5)", "窗口内达到该次数即视为频繁溢出（5）"),
    "cli.run.option.window": ("steps (100)", "窗口的步数（100）"),
    "cli.run.option.warmup": ("steps in which a scale that begins too high may settle (20)", "允许过高的初始 loss scale 回落的步数（20）"),
    "cli.run.option.min_scale": ("one overflow that leaves the scale at or below it is enough (1.0)", "一次溢出使 loss scale 不高于该值即触发（1.0）"),
    "cli.run.exit_code": (
        "exit with status 3 if this run reported an overflow and the script ended well",
        "脚本正常结束但本次运行报告了溢出时，以状态码 3 退出",
    ),
    "cli.run.survey": (
        "measure how near each layer comes to float16's limits at this training step",
        "测量各层在该训练步距 float16 极限还有多少余量",
    ),
    "cli.run.option.at_steps": ("collect at these training steps, such as 40,41 or 40:50 (40 to 49)", "在这些训练步采集，例如 40,41 或 40:50（第 40 至 49 步）"),
    "cli.run.option.check_every": ("steps between looks at the scale, or auto", "两次读取 loss scale 之间的步数，或 auto"),
    "cli.run.option.keep": ("overflowing steps collected (3)", "采集的溢出步数（3）"),
    "cli.run.option.max_collect_steps": ("steps after which what there is gets analyzed (20)", "经过这些步后，分析已采集的内容（20）"),
    "cli.run.option.max_collect_seconds": ("seconds after which what there is gets analyzed (300)", "经过这些秒后，分析已采集的内容（300）"),
    "cli.run.option.max_reports": ("reports in one training (5)", "一次训练中的报告数上限（5）"),
    "cli.run.option.limit": ("operators shown in the terminal (3)", "终端中显示的算子个数（3）"),
    "cli.run.option.dump_path": ("folder of the dump trees (precision_data/overflow/dump)", "dump 目录（precision_data/overflow/dump）"),
    "cli.run.option.max_disk": ("most that is kept on disk (2GB)", "磁盘占用上限（2GB）"),
    "cli.run.option.max_memory": ("most of tensors held while a step is collected (256MB)", "采集单步时保留张量的内存上限（256MB）"),
    "cli.run.option.collector": ("auto, ascend or host (auto)", "auto、ascend 或 host（auto）"),
    "cli.run.option.on_overflow": ("after a report: report goes on, stop ends fit, restart is --restart (report)", "报告之后：report 继续训练，stop 结束 fit，restart 等同 --restart（report）"),
    "cli.run.option.restore": ("start from the weights saved at the trigger of the run before", "从上次运行触发时保存的权重开始训练"),
    "cli.run.option.tensorboard_dir": ("folder for TensorBoard", "TensorBoard 目录"),
    "cli.run.option.language": ("en or zh (from the locale)", "en 或 zh（取自系统区域设置）"),
    "cli.run.option.verbose": ("0 prints nothing but errors (1)", "0 表示除错误外不输出（1）"),
    "run.nothing": ("No script was given.", "未给出脚本。"),
    "run.nothing.hint": ("npu-overflow run [OPTIONS] script.py ARGS…, or -m MODULE ARGS…", "用法：npu-overflow run [选项] script.py 参数…，或 -m 模块 参数…"),
    "run.no_module": ("-m needs the name of a module.", "-m 需要模块名。"),
    "run.missing": ("There is no script {path}.", "脚本 {path} 不存在。"),
    "run.missing.hint": ("Options stand before the script, its own arguments behind it.", "选项写在脚本之前，脚本自身的参数写在其后。"),
    "run.restarting": (
        "the script is started once more, with the dump on from its first step (overflow was frequent at step {step}). It begins anew: weights are kept "
        "for it in fit only.",
        "现在重新启动脚本，从第一步起开启 dump（第 {step} 步时溢出已频繁）。训练从头开始：仅 fit 训练会保留权重。",
    ),
    "run.restarting.weights": (
        "the script is started once more, with the dump on from its first step and from the weights saved at step {step}. Its data begins anew.",
        "现在重新启动脚本，从第一步起开启 dump，并从第 {step} 步保存的权重开始。数据从头读取。",
    ),
    "watch.restart_alone": (
        "on_overflow='restart' needs a supervisor: start the script with npu-overflow run --restart. Here only a request is recorded.",
        "on_overflow='restart' 需要监督进程：请用 npu-overflow run --restart 启动脚本。此处仅会记录请求。",
    ),
    "watch.restart": (
        "step {step}: overflow is frequent, and the device was opened without the dump: the script is ended here and started once more with it.",
        "第 {step} 步：溢出频繁，而设备打开时没有开启 dump：脚本在此结束，并将开启 dump 重新启动。",
    ),
    "watch.restart_several": (
        "with {size} ranks nothing is restarted, as ending one would stall the others. Start the whole job again with npu-overflow run (without --restart): "
        "the dump is then on from the first step.",
        "共有 {size} 个 rank，不会重新启动：结束其中一个会使其他 rank 停住。请用 npu-overflow run（不带 --restart）重新启动整个作业，dump 将从第一步起开启。",
    ),
    "watch.restart_thread": (
        "the training does not run on the main thread, so the script can't be ended for a restart; start it again with npu-overflow run.",
        "训练不在主线程中运行，无法结束脚本以便重启；请用 npu-overflow run 重新启动。",
    ),
    "watch.restart_notebook": (
        "in a notebook nothing is restarted or ended: restart the kernel, call npu_overflow.npu_device_dump_config(npu_device) before npu_device.open() and run "
        "the cells again.",
        "在 notebook 中不会重启或结束任何内容：请重启内核，在 npu_device.open() 之前调用 npu_overflow.npu_device_dump_config(npu_device)，然后重新运行各单元格。",
    ),
    "watch.restored": (
        "weights, optimizer state and loss scale of the run before were restored: {path}",
        "已恢复上次运行的权重、优化器状态和 loss scale：{path}",
    ),
    "watch.restored.weights": (
        "weights of the run before were restored: {path}; optimizer state and loss scale were not ({reason}) and start anew.",
        "已恢复上次运行的权重：{path}；未恢复优化器状态和 loss scale（{reason}），它们从头开始。",
    ),
    "watch.not_restored.loop": (
        "nothing of the run before was restored: that takes fit with the watch among its callbacks, or npu-overflow run; a loop of your own starts from its own "
        "beginning.",
        "未恢复上次运行的任何内容：仅支持 callbacks 中带有监视器的 fit，或由 npu-overflow run 启动的 fit；自定义循环从头开始。",
    ),
    "watch.not_restored": (
        "the weights of the run before were not restored ({reason}); the training starts from its own beginning.",
        "未恢复上次运行的权重（{reason}）；训练从头开始。",
    ),
    "watch.other_rank": (
        "step {step}: the loss scale fell because of another rank's overflow; this rank has none of its own.",
        "第 {step} 步：loss scale 因其他 rank 溢出而下降；本 rank 自身没有溢出。",
    ),
    "watch.rank_overflowed": (
        "step {step}: {operator} overflowed first on this rank. Its report: {files}. Which rank was "
        "first: npu-overflow merge {folder}",
        "第 {step} 步：本 rank 最先溢出的是 {operator}。报告：{files}。要知道哪个 rank 最先溢出：npu-overflow merge {folder}",
    ),
    "cli.merge.help": ("the reports of many ranks as one: which rank overflowed first", "合并多个 rank 的报告：哪个 rank 最先溢出"),
    "cli.merge.reports": (
        "saved JSON reports, folders that hold them, or URLs of either (s3://bucket/run/*/report.json, with the extra fsspec)",
        "已保存的 JSON 报告、包含报告的目录，或它们的 URL（如 s3://bucket/run/*/report.json，需安装 fsspec 附加依赖）",
    ),
    "cli.merge.exit_code": (
        "exit with status 3 if any rank overflowed, with 0 where there is no report at all",
        "有 rank 溢出时以状态码 3 退出；没有任何报告时为 0",
    ),
    "cli.merge.json": ("print JSON (schema 1) instead of text", "输出 JSON（schema 1）而非文本"),
    "cli.merge.output": ("also save the merged report as JSON", "同时将合并后的报告保存为 JSON"),
    "cli.merge.limit": ("operators to show (default: {default})", "显示的算子个数（默认：{default}）"),
    "merge.left_out": (
        "The reports list {count} operators; {kept} of them are kept: the first ones from each report's own finding on, and the first of the others.",
        "各报告共列出 {count} 个算子，保留了其中 {kept} 个：各报告自身首个溢出算子及其之后的最早若干个，以及其余算子中最早的若干个。",
    ),
    "merge.problems_left_out": ("{count} more {count:problem is|problems are} not listed; the first {kept} are.", "另有 {count} 个问题未列出；已列出前 {kept} 个。"),
    "merge.remarks_left_out": ("{count} more {count:remark is|remarks are} not listed; the first {kept} are.", "另有 {count} 条备注未列出；已列出前 {kept} 条。"),
    "merge.interrupted": (
        "Interrupted: {done} {done:report was|reports were} read, others may follow; nothing is known of those.",
        "已中断：已读取 {done} 份报告，其余报告的情况未知。",
    ),
    "merge.unread": ("{count} more {count:report|reports} could not be read.", "另有 {count} 份报告无法读取。"),
    "merge.not_written": ("{file} was not written, as not all reports were read.", "由于未读完所有报告，没有写入 {file}。"),
    "merge.nothing": ("There is no report to merge.", "没有可合并的报告。"),
    "merge.missing": ("{path} does not exist.", "{path} 不存在。"),
    "merge.none_in_folder": ("There is no report.json in {path} or below.", "{path} 及其子目录中没有 report.json。"),
    "merge.no_overflow": ("With --exit-code: no rank has reported an overflow.", "--exit-code：没有 rank 报告溢出。"),
    "merge.no_report": ("{path} is no saved report: {reason}", "{path} 不是已保存的报告：{reason}"),
    "merge.no_report.hint": (
        "Reports are made by the watch (report.json) and by npu-overflow analyze --json.",
        "报告由监视器（report.json）或 npu-overflow analyze --json 生成。",
    ),
    "merge.first": (
        "rank {rank} overflowed first; ranks with a finding ({count}): {ranks}.",
        "rank {rank} 最先溢出；有溢出的 rank（{count} 个）：{ranks}。",
    ),
    "merge.close": (
        "ranks {one} and {other} overflowed within 10 ms of each other: clocks of different machines can't tell which was first.",
        "rank {one} 与 rank {other} 的溢出相差不到 10 毫秒：不同机器的时钟无法判断先后。",
    ),
    "merge.quiet": ("ranks without a finding ({count}): {ranks}.", "没有溢出的 rank（{count} 个）：{ranks}。"),
}
