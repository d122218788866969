"""What the watch, the session and the collectors say while a training runs."""
from __future__ import annotations

from typing import Dict, Tuple

TEXTS: Dict[str, Tuple[str, str]] = {
    "watch.collector.host": (
        "watching the loss scale; after repeated overflows the host collector (TensorFlow on CPU or GPU) replays the overflowing steps{why}.",
        "正在监视 loss scale；反复溢出后，将由主机采集器（CPU 或 GPU 上的 TensorFlow）重放溢出的训练步{why}。",
    ),
    "watch.collector.ascend": (
        "watching the loss scale; overflow dumps of the Ascend device are analyzed after repeated overflows{why}.",
        "正在监视 loss scale；反复溢出后将分析昇腾设备的溢出 dump 数据{why}。",
    ),
    "watch.why.given": (" (collector={collector!r})", "（collector={collector!r}）"),
    "watch.why.loaded": (" (npu_device is loaded)", "（已加载 npu_device）"),
    "watch.why.unloaded": (" (no Ascend NPU in use)", "（未使用昇腾 NPU）"),
    "watch.why.unopened": (" (npu_device is loaded, but no device is open)", "（已加载 npu_device，但没有打开设备）"),
    "watch.trigger": (
        "step {step}: {count} {count:step|steps} overflowed, the loss scale fell from {before} to {after}, overflow is frequent: collecting the operators of "
        "overflowing steps.",
        "第 {step} 步：已有 {count} 步溢出，loss scale 从 {before} 降到 {after}，溢出频繁：开始采集溢出步的算子。",
    ),
    "watch.trigger.signs": (
        "step {step}: {count} {count:step|steps} overflowed although the loss scale stands still, overflow is frequent: collecting the operators of "
        "overflowing steps.",
        "第 {step} 步：loss scale 未变，但已有 {count} 步溢出，溢出频繁：开始采集溢出步的算子。",
    ),
    "watch.nothing_collected.end": ("no further step overflowed until the training ended.", "直到训练结束没有再出现溢出的训练步。"),
    "watch.trigger.lost": (
        "step {step}: the loss became non-finite and nothing skips such steps: collecting now.",
        "第 {step} 步：loss 变为非有限值，且没有机制跳过这样的步：立即开始采集。",
    ),
    "watch.nothing_collected": ("no further step overflowed while collecting; watching on.", "采集期间没有再出现溢出的训练步；继续监视。"),
    "watch.nothing_asked": (
        "what at_steps asked for from step {step} on did not overflow; watching on.",
        "at_steps 自第 {step} 步起指定的训练步没有溢出；继续监视。",
    ),
    "watch.late": (
        "the report is not ready after {seconds} s and is given up; to make it: npu-overflow analyze {folder}",
        "等待 {seconds} 秒后报告仍未完成，不再等待；可自行生成：npu-overflow analyze {folder}",
    ),
    "watch.same_culprit": (
        "step {step}: the same operator overflows first again: {name}",
        "第 {step} 步：首个溢出的仍是同一算子：{name}",
    ),
    "watch.rate": (
        "{overflowing} of {steps} {steps:step|steps} overflowed ({percent} %). Below 0.5 % is usual with dynamic loss scaling.",
        "{steps} 步中有 {overflowing} 步溢出（{percent} %）。使用动态 loss scale 时低于 0.5 % 属正常。",
    ),
    "watch.rate.at_least": (
        "at least {overflowing} of {steps} {steps:step|steps} overflowed ({percent} %): looks that cover several steps can't tell "
        "all of them apart. Below 0.5 % is usual with dynamic loss scaling.",
        "{steps} 步中至少有 {overflowing} 步溢出（{percent} %）：一次查看覆盖多步时无法全部区分。使用动态 loss scale 时低于 0.5 % 属正常。",
    ),
    "watch.rate.few": (
        "{overflowing} of {steps} {steps:step|steps} overflowed.",
        "{steps} 步中有 {overflowing} 步溢出。",
    ),
    "watch.rate.few.at_least": (
        "at least {overflowing} of {steps} {steps:step|steps} overflowed: looks that cover several steps can't tell all of them apart.",
        "{steps} 步中至少有 {overflowing} 步溢出：一次查看覆盖多步时无法全部区分。",
    ),
    "watch.rate.patience": (
        "{count} of them {count:counts|count} (those of the warm-up don't), too few to start a collection. To find the operator, train once more with OverflowWatch(at_steps={steps}), or, if it overflows "
        "again and again, with OverflowWatch(patience={patience}).",
        "其中计入的有 {count} 步（预热期内的不计），不足以触发采集。如需定位算子，请用 OverflowWatch(at_steps={steps}) 重新训练；如果反复溢出，也可用 OverflowWatch(patience={patience})。",
    ),
    "watch.dead": (
        "the loss scale has fallen to 0 and can't rise again: the training is dead, every step is skipped and nothing is learned. Stop it, mend the "
        "operator that overflows, and start again from a good checkpoint with a new optimizer.",
        "loss scale 已降到 0，且无法再上升：训练已失效，每一步都被跳过，学不到任何东西。请停止训练，修复溢出的算子，并用新的优化器从完好的检查点重新开始。",
    ),
    "watch.floor": (
        "the loss scale stands at {scale}, the lowest that its optimizer allows, and the last steps overflowed all the same: they are skipped and "
        "nothing is learned. A lower loss scale can't cure it: mend the operator that overflows, or compute it in float32; where only a gradient is too "
        "large, make the loss smaller.",
        "loss scale 已是其优化器允许的最小值 {scale}，而最近的训练步仍然溢出：这些步都被跳过，学不到任何东西。无法靠更小的 loss scale 解决：请修复溢出的算子，"
        "或以 float32 计算；如果只是梯度过大，请减小 loss。",
    ),
    "watch.rate.settled": (
        "{overflowing} of {steps} {steps:step|steps} overflowed while the loss scale settled at {scale}, none since: nothing to do.",
        "{steps} 步中有 {overflowing} 步溢出，均发生在 loss scale 回落到 {scale} 的过程中，此后没有溢出，无需处理。",
    ),
    "watch.spoiled": (
        "the state variable {name} holds Inf or NaN ({count} {count:variable|variables} in all): "
        "a step that overflows is skipped for the weights only, what else it wrote stays. Set it "
        "to a finite value, or go back to a checkpoint from before the overflow.",
        "状态变量 {name} 含有 Inf 或 NaN（共 {count} 个变量）：溢出的训练步只跳过权重更新，其写入的其他状态会保留。请将其设为有限值，或恢复到溢出之前的检查点。",
    ),
    "watch.spoiled.normalization": (
        "the moving statistics {name} hold Inf or NaN ({count} {count:variable|variables} in all): "
        "a step that overflows is skipped for the weights only, its statistics stay. Training goes "
        "on well, and inference gives NaN. Set them back (mean 0, variance 1) and train for some "
        "more steps, or go back to a checkpoint from before the overflow.",
        "归一化的滑动统计量 {name} 含有 Inf 或 NaN（共 {count} 个变量）：溢出的训练步只跳过权重更新，其统计量会保留。训练看似正常，推理却得到 NaN。"
        "请将其重置（均值 0、方差 1）并再训练若干步，或恢复到溢出之前的检查点。",
    ),
    "watch.rate.warmup": (
        "all of them within the warm-up, where a loss scale that begins too high may settle, so nothing was collected. "
        "To find the operator nevertheless: warmup=0, or at_steps=[{step}] for a step that overflowed.",
        "这些溢出都发生在预热期内（允许过高的初始 loss scale 回落），因此未采集。如仍需定位算子：设 warmup=0，或用 at_steps=[{step}] 指定一个溢出的训练步。",
    ),
    "watch.no_optimizer": (
        "no loss-scale optimizer was found, so nothing could be watched. Give it: overflow_dump(optimizer=…), or tell each step: watch.step(loss_scale=…). "
        "Estimators and sessions can't be watched; npu-overflow analyze reads dumps made elsewhere.",
        "未找到带 loss scale 的优化器，因此无法监视。请传入优化器：overflow_dump(optimizer=…)，或逐步告知：watch.step(loss_scale=…)。"
        "Estimator 和会话无法监视；npu-overflow analyze 可分析在别处生成的 dump。",
    ),
    "watch.failed": (
        "npu_overflow failed and turned itself off; the training is not affected. Please report this traceback.",
        "npu_overflow 自身出错并已关闭；训练不受影响。请反馈以下调用栈。",
    ),
    "watch.on_report_failed": ("the on_report function raised; the training goes on.", "on_report 函数抛出异常；训练继续。"),
    "watch.off": ("off: {reason}", "已关闭：{reason}"),
    "watch.request": ("{reason}", "{reason}"),
    "watch.blind": (
        "the optimizer {optimizer} sees no overflow on this device: in saturation mode overflowed values are finite, the loss scale does not fall, and the gradients are wrong. "
        "Use npu_device.train.optimizer.NpuLossScaleOptimizer.",
        "优化器 {optimizer} 在此设备上看不到溢出：饱和模式下溢出值仍为有限值，loss scale 不会下降，而梯度是错误的。请改用 npu_device.train.optimizer.NpuLossScaleOptimizer。",
    ),
    "watch.unguarded": (
        "the optimizer {optimizer} has no loss scaling: nothing skips a step with non-finite gradients, so an overflow reaches the weights. "
        "The first non-finite loss starts a collection.",
        "优化器 {optimizer} 没有 loss scale：非有限梯度的训练步不会被跳过，溢出会写入权重。首次出现非有限 loss 时开始采集。",
    ),
    "watch.unguarded.fixed": (
        "the optimizer {optimizer} has a fixed loss scale: nothing skips a step with non-finite gradients, so an overflow reaches the weights. "
        "The first non-finite loss starts a collection.",
        "优化器 {optimizer} 使用固定的 loss scale：非有限梯度的训练步不会被跳过，溢出会写入权重。首次出现非有限 loss 时开始采集。",
    ),
    "watch.elsewhere": (
        "{path} can't be written: {reason}. What is collected goes to {folder}; for another folder give dump_path.",
        "无法写入 {path}：{reason}。采集的内容写入 {folder}；如需其他目录，请设置 dump_path。",
    ),
    "watch.step_outside": (
        "watch.step() counts only inside a training: put the loop into 'with npu_overflow.overflow_dump() as watch:'.",
        "watch.step() 只在训练之内有效：请把循环放在 with npu_overflow.overflow_dump() as watch: 之内。",
    ),
    "watch.no_disk": ("{error} {hint} Until then reports are printed only.", "{error}{hint}在此之前，报告只会打印，不会保存。"),
    "watch.not_saved": ("{error} {hint} The report is printed only.", "{error}{hint}报告只会打印，不会保存。"),
    "tensorboard.stopped": ("{error} {hint} Nothing more is written for TensorBoard.", "{error}{hint}之后不再为 TensorBoard 写入数据。"),
    "replay.not_reproduced": (
        "step {step} overflowed in the training, and not when its operators ran again one by one: a difference of compiled "
        "kernels, or of random draws such as dropout.",
        "第 {step} 步在训练中溢出，但逐个重新执行其算子时未溢出：可能源于编译内核的差异，或 dropout 等随机取样的差异。",
    ),
    "replay.other_rank": (
        "step {step} was skipped because of another worker's overflow: this worker's own gradients are finite.",
        "第 {step} 步因其他 worker 溢出而被跳过：本 worker 自身的梯度均为有限值。",
    ),
    "replay.failed": ("step {step} can't be replayed: {error}", "第 {step} 步无法重放：{error}"),
    "replay.no_survey": (
        "the headroom of step {step} can't be measured: {error}",
        "无法测量第 {step} 步的余量：{error}",
    ),
    "host.weights_lost.guarded": (
        "the variable {name} is non-finite, at the latest since training step {step}, although steps with non-finite gradients are skipped: no gradient did it. Look at what else writes "
        "it: the state of a layer (reset it), a moving average, an assignment, or the optimizer itself (in float16 an epsilon below 6e-8 is 0).",
        "变量 {name} 最晚自第 {step} 个训练步起已含非有限值，而梯度非有限的训练步都会被跳过：并非梯度所致。请检查还有什么会写入该变量：层的状态（请重置）、滑动平均、赋值操作，或优化器自身"
        "（float16 中小于 6e-8 的 epsilon 为 0）。",
    ),
    "host.weights_lost": (
        "the variable {name} is non-finite, at the latest since training step {step}, and nothing skipped the step that did it. To see the operator, train once more from a good "
        "checkpoint with OverflowWatch(at_steps={wanted}), or use a LossScaleOptimizer, which skips such steps. Where the gradients were finite, the optimizer did it: in float16 an epsilon below 6e-8 is 0.",
        "变量 {name} 最晚自第 {step} 个训练步起已含非有限值，且造成它的训练步未被跳过。要找出造成它的算子，请从完好的检查点重新训练并使用 OverflowWatch(at_steps={wanted})，"
        "或使用会跳过此类训练步的 LossScaleOptimizer。如果梯度均为有限值，则是优化器造成的：float16 中小于 6e-8 的 epsilon 为 0。",
    ),
    "host.disk_budget": (
        "step {step}: {count} {count:operator was|operators were} not written, max_disk is used up.",
        "第 {step} 步：有 {count} 个算子未写入，max_disk 已用尽。",
    ),
    "compat.no_record": (
        "what TensorFlow executes can't be recorded without its {name}.",
        "缺少 TensorFlow 内部接口 {name}，无法记录其执行的内容。",
    ),
    "compat.no_interpreter": (
        "a record can't be run again without TensorFlow's {name}.",
        "缺少 TensorFlow 内部接口 {name}，无法重新执行记录。",
    ),
    "compat.no_definitions": (
        "functions whose Python graph is gone can't be looked into: TensorFlow's {name} was not found.",
        "无法查看 Python 图已释放的函数：未找到 TensorFlow 内部接口 {name}。",
    ),
    "compat.no_functions": ("tf.function calls can't be seen without TensorFlow's {name}.", "缺少 TensorFlow 内部接口 {name}，无法看到 tf.function 的调用。"),
    "dump_config.little_room": (
        "only {free} GB are free for the dump in {path}; the dump of one step can have gigabytes.",
        "{path} 所在磁盘仅剩 {free} GB；单个训练步的 dump 可能达到数 GB。",
    ),
    "dump_config.exception_dump": (
        "enable_exception_dump is 1: on networks with dynamic shapes this disables the overflow dump. Leave it at its default, 2.",
        "enable_exception_dump 的值为 1：对于动态 shape 网络，这会使溢出 dump 失效。请保持默认值 2。",
    ),
    "ascend.opened_without_dump.note": (
        "the device was opened without the overflow dump: overflow is watched, but its operators can't be collected. To collect them, call "
        "npu_overflow.npu_device_dump_config(npu_device) before npu_device.open().",
        "设备打开时没有开启溢出 dump：仅监视溢出，无法采集溢出算子。如需采集，请在 npu_device.open() 之前调用 npu_overflow.npu_device_dump_config(npu_device)。",
    ),
    "ascend.not_default": (
        "the Ascend device is open but not the default, so only what is placed on it by name runs there. To run everything on it, call "
        "npu_device.open().as_default().",
        "昇腾设备已打开，但不是默认设备，只有显式放置到该设备的计算才在其上运行。如需全部在其上运行，请调用 npu_device.open().as_default()。",
    ),
    "ascend.before_trigger": (
        "the training ended before overflow was frequent; the dumps of {count} overflowing steps were there.",
        "训练在溢出变得频繁之前结束；当时已有 {count} 个溢出步的 dump。",
    ),
    "ascend.unfinished": (
        "dumps of {count} {count:step|steps} were still being written when they were analyzed.",
        "分析时仍有 {count} 个训练步的 dump 未写完。",
    ),
}
