"""Advice, by rule code: ``advice.CODE`` says what to do, ``advice.CODE.title`` is its headline, ``advice.CODE.when`` the condition (for the
documentation), ``advice.CODE.host`` replaces the text on a
tree of the host collector (CPU, GPU), where Ascend's options do nothing, ``advice.CODE.batch`` where the value came with the batch,
``advice.CODE.scores`` where the operator makes attention scores.

Every sentence can use ``{op_type}`` and ``{op_name}``, and what its rule always gives as evidence. Lines that begin with blanks are code.
"""
from __future__ import annotations

from typing import Dict, Tuple

TEXTS: Dict[str, Tuple[str, str]] = {
    "advice.keep_float32.title": ("Keep this operator in float32", "让该算子保持 float32 精度"),
    "advice.keep_float32.when": (
        "The operator made the overflow itself, and a result of it is float16 or narrower. bfloat16 has the range of float32 and is not meant.",
        "溢出由该算子自身产生，且其结果为 float16 或更窄的类型。bfloat16 的表示范围与 float32 相同，不在此列。",
    ),
    "advice.keep_float32": (
        "Keep the operator in float32.\n"
        "Method 1 (recommended): a mixed-precision list that keeps the type {op_type} in float32. ops_info.json:\n"
        '    {{"black-list": {{"to-add": ["{op_type}"]}}}}\n'
        "and before the device is opened:\n"
        '    npu.global_options().precision_mode_v2 = "mixed_float16"\n'
        '    npu.global_options().modify_mixlist = "ops_info.json"\n'
        'precision_mode = "allow_mix_precision" works too; the two exclude each other. The list keeps every {op_type} of the model in float32.\n'
        "Method 2: only this call, in the forward pass (it marks neither eager operators nor gradients):\n"
        "    with npu.keep_dtype_scope():\n"
        "        y = layer(x)\n"
        'On a CPU or GPU: dtype="float32" on the Keras layer. A layer made of other layers does not pass its dtype on: give dtype="float32" to each inner layer as '
        "well.",
        "让该算子以 float32 精度计算。\n"
        "方法一（推荐）：通过混合精度名单让 {op_type} 类型保持 float32。ops_info.json：\n"
        '    {{"black-list": {{"to-add": ["{op_type}"]}}}}\n'
        "并在打开设备之前设置：\n"
        '    npu.global_options().precision_mode_v2 = "mixed_float16"\n'
        '    npu.global_options().modify_mixlist = "ops_info.json"\n'
        '也可以使用 precision_mode = "allow_mix_precision"，但两者不能同时设置。该名单会使模型中所有 {op_type} 算子保持 float32。\n'
        "方法二：只针对前向中的这一处调用（对 eager 算子和反向梯度算子不起作用）：\n"
        "    with npu.keep_dtype_scope():\n"
        "        y = layer(x)\n"
        '在 CPU 或 GPU 上：给 Keras 层设置 dtype="float32"。由其他层组成的层不会把 dtype 传给内部各层：请给每个内部层也加上 dtype="float32"。',
    ),
    "advice.keep_float32.host": (
        "Keep the layer that holds this operator in float32 and leave the rest of the model in mixed precision:\n"
        '    keras.layers.Dense(..., dtype="float32")\n'
        'A layer made of other layers does not pass its dtype on: give dtype="float32" to each inner layer as well.\n'
        "Or, in code of your own, compute this one expression in float32:\n"
        "    y = tf.cast(f(tf.cast(x, tf.float32)), x.dtype)\n"
        "The result must fit float16 when it is cast back.",
        "让该算子所在的层保持 float32，模型其余部分继续使用混合精度：\n"
        '    keras.layers.Dense(..., dtype="float32")\n'
        '由其他层组成的层不会把 dtype 传给内部各层：请给每个内部层也加上 dtype="float32"。\n'
        "如果是自己编写的代码，则只让这一个表达式以 float32 计算：\n"
        "    y = tf.cast(f(tf.cast(x, tf.float32)), x.dtype)\n"
        "转换回 float16 时，结果必须在其表示范围内。",
    ),
    "advice.weight_range.title": ("A weight has grown out of range", "权重已超出表示范围"),
    "advice.weight_range.when": (
        "On a CPU or GPU: the Cast of a weight to float16 overflows.",
        "在 CPU 或 GPU 上：权重转换为 float16 的 Cast 溢出。",
    ),
    "advice.weight_range": (
        "{name} holds {value}, which float16 can't (65504 is its maximum), and no weight should be as large: training diverges. Go back to a checkpoint from before it grew, lower the "
        "learning rate, clip the gradients, add weight decay, and look at what assigns the weight.\n"
        "    optimizer = tf.keras.optimizers.Adam(1e-4, clipnorm=1.0)",
        "{name} 中含有 {value}，超出 float16 的最大值 65504；权重不应达到这样的数量级：训练正在发散。请回退到其增大之前的检查点，降低学习率、裁剪梯度、加入权重衰减，并检查还有什么会给该权重赋值。\n"
        "    optimizer = tf.keras.optimizers.Adam(1e-4, clipnorm=1.0)",
    ),
    "advice.cast_range.title": ("The value does not fit the narrower type", "数值超出低精度类型的表示范围"),
    "advice.cast_range.when": (
        "A Cast or TransData to float16 overflows, or bit 0x100 of the status is set (Atlas training products).",
        "转换为 float16 的 Cast 或 TransData 溢出，或状态码的 0x100 位被置位（Atlas 训练系列产品）。",
    ),
    "advice.cast_range": (
        "A value does not fit float16: from 65520 on it becomes Inf (INF/NaN mode), above 65504 it pins to 65504 (saturation mode). Look at the "
        "operator that makes the input of {op_name}: scale, normalise or clip it before the conversion, or keep that part of the model in float32.\n"
        "    x = tf.clip_by_value(x, -6.0e4, 6.0e4)",
        "数值超出 float16 的表示范围：INF/NaN 模式下达到 65520 即变为 Inf，饱和模式下超过 65504 会被截断为 65504。"
        "请检查产生 {op_name} 输入的算子：在类型转换之前缩放、归一化或截断，或者让这部分模型保持 float32。\n"
        "    x = tf.clip_by_value(x, -6.0e4, 6.0e4)",
    ),
    "advice.cast_range.batch": (
        'The value comes with the batch ("{batch}"): scale, normalise or clip it in the input pipeline, or begin the model with a layer in float32.\n'
        "    x = tf.clip_by_value(x, -6.0e4, 6.0e4)",
        "该数值来自输入批数据（\"{batch}\"）：请在数据管道中缩放、归一化或截断，或让模型的第一层使用 float32。\n"
        "    x = tf.clip_by_value(x, -6.0e4, 6.0e4)",
    ),
    "advice.cube_accumulation.title": ("Matrix accumulation overflowed", "矩阵累加溢出"),
    "advice.cube_accumulation.when": (
        "Bit 0x400 of the status is set: the accumulator of the matrix unit (Atlas training products).",
        "状态码的 0x400 位被置位，即矩阵单元的累加器溢出（Atlas 训练系列产品）。",
    ),
    "advice.cube_accumulation": (
        "The sum over the inner dimension of the matrix product exceeds the range of its result. Let the matrix unit write float32 (precision_mode "
        '"cube_fp16in_fp32out"), use a smaller loss scale if this is a gradient, or normalise the inputs (LayerNorm before, 1/sqrt(d) scaling, smaller '
        "initial weights).",
        "矩阵乘在内维上的累加和超出了结果类型的表示范围。可以让 Cube 单元输出 float32（precision_mode 设为 \"cube_fp16in_fp32out\"）；"
        "如果是反向梯度，可减小 loss scale；或者对输入做归一化（前置 LayerNorm、按 1/sqrt(d) 缩放、减小初始权重）。",
    ),
    "advice.atomic_add.title": ("Gradients summed by atomic additions", "原子加累加梯度"),
    "advice.atomic_add.when": (
        "The record comes from DHA Atomic Add or L2 Atomic Add and not from an AI Core.",
        "溢出记录来自 DHA Atomic Add 或 L2 Atomic Add，而非 AI Core。",
    ),
    "advice.atomic_add": (
        "Partial sums were added by atomic operations in float16 ({core}). Look at the findings of AI Core operators first: they often make the values "
        "that overflow here. If this one stands alone, keep the operator {op_type} in float32 or use a smaller loss scale.",
        "部分和以 float16 原子加方式累加（{core}）。请先查看 AI Core 算子的溢出：此处溢出的数值往往由它们产生。"
        "如果只有这一项，请让 {op_type} 算子保持 float32，或减小 loss scale。",
    ),
    "advice.reduction_inside.title": ("A sum inside the operator overflows", "算子内部的求和溢出"),
    "advice.reduction_inside.when": (
        "Neither inputs nor outputs hold an overflow value, and the operator is a pooling, mean, sum, norm or variance.",
        "输入和输出均不含溢出值，且算子为池化、均值、求和、归一化或方差类。",
    ),
    "advice.reduction_inside": (
        "{op_type} sums before it divides: the sum overflows although inputs and result are in range. Keep this operator in float32, divide before "
        "summing, or reduce over fewer elements at a time.\n"
        "    y = tf.reduce_sum(x / n)            # instead of tf.reduce_mean(x)",
        "{op_type} 先求和后相除：输入和结果都在范围内，但中间的和溢出。请让该算子保持 float32，或先除后加，或分批归约。\n"
        "    y = tf.reduce_sum(x / n)            # 代替 tf.reduce_mean(x)",
    ),
    "advice.log_or_reciprocal.title": ("Too close to zero, or negative", "输入过于接近零或为负数"),
    "advice.log_or_reciprocal.when": (
        "A logarithm, root, quotient or power made the overflow, and its input holds a 0, a negative, or a magnitude below 1/MAX of the result's type.",
        "对数、开方、除法或幂运算自身产生溢出，且输入中含有 0、负数或小于结果类型 1/MAX 的量级。",
    ),
    "advice.log_or_reciprocal": (
        "{tensor} holds {value}, which {op_type} can't take. Add an epsilon that float16 can hold: one of 2.98e-8 or less becomes 0, and 1/epsilon "
        "overflows below 1.53e-5; use 1e-4 or larger, or compute this in float32.\n"
        "    y = tf.math.log(x + 1e-4)           # or tf.maximum(x, 1e-4)\n"
        "Where 0 / 0 is to be 0: tf.math.divide_no_nan.",
        "{tensor} 中含有 {value}，{op_type} 无法处理。请加上 float16 能够表示的 epsilon：不大于 2.98e-8 的会变成 0，"
        "小于 1.53e-5 时 1/epsilon 会溢出；请使用 1e-4 或更大的值，或改用 float32 计算。\n"
        "    y = tf.math.log(x + 1e-4)           # 或 tf.maximum(x, 1e-4)\n"
        "需要 0 / 0 得 0 时：tf.math.divide_no_nan。",
    ),
    "advice.exponent.title": ("The exponent is too large", "指数过大"),
    "advice.exponent.when": (
        "An exponential made the overflow, and its input exceeds ln(MAX): 11.09 for float16.",
        "指数类运算自身产生溢出，且输入超过 ln(MAX)：float16 为 11.09。",
    ),
    "advice.exponent": (
        "{tensor} holds {value}; exp overflows above {bound}. Subtract the maximum first, use TensorFlow's own stable functions (tf.nn.softmax, "
        "tf.nn.log_softmax, tf.math.softplus, losses with from_logits=True), or clip.\n"
        "    top = tf.stop_gradient(tf.reduce_max(x, axis=-1, keepdims=True))\n"
        "    y = tf.exp(x - top)",
        "{tensor} 中含有 {value}，超过 {bound} 时 exp 即溢出。请先减去最大值，使用 TensorFlow 自带的数值稳定函数"
        "（tf.nn.softmax、tf.nn.log_softmax、tf.math.softplus、from_logits=True 的损失函数），或做截断。\n"
        "    top = tf.stop_gradient(tf.reduce_max(x, axis=-1, keepdims=True))\n"
        "    y = tf.exp(x - top)",
    ),
    "advice.mask_constant.title": ("A mask constant that float16 can't hold", "掩码常量超出 float16 范围"),
    "advice.mask_constant.when": (
        "An input holds a magnitude of 1e9 or more, the lowest value of its type, or -Inf and no other overflow value.",
        "输入中含有不小于 1e9 的量级、该类型的最小值，或仅含 -Inf 而无其他溢出值。",
    ),
    "advice.mask_constant": (
        "{tensor} holds {value}: probably a mask. Use a value inside float16's range, and never mask a whole row (its softmax has nothing left and "
        "gives NaN).\n"
        "    scores += (1.0 - mask) * -1.0e4     # not -1e9, float32's minimum, -inf",
        "{tensor} 中含有 {value}，很可能是掩码。请使用 float16 范围内的值，且不要屏蔽一整行（整行被屏蔽时 softmax 会得到 NaN）。\n"
        "    scores += (1.0 - mask) * -1.0e4     # 不用 -1e9、float32 最小值、-inf",
    ),
    "advice.constant_input.title": ("The value came from outside", "溢出值来自模型之外"),
    "advice.constant_input.when": (
        "The overflow was inherited, and the input that holds it was made by no operator of the dump.",
        "溢出由上游传入，而含有溢出值的输入并非由本次 dump 中的算子产生。",
    ),
    "advice.constant_input": (
        "{tensor} already holds the overflow value, and no operator of this dump made it. Look at what is fed into the model: constants, labels, "
        "features, and weights or moving averages that an earlier step may have spoiled.\n"
        "    tf.debugging.assert_all_finite(x, \"features\")",
        "{tensor} 中已含有溢出值，而本次 dump 中没有算子产生它。请检查模型的输入：常量、标签、特征，以及可能已被之前的训练步破坏的权重或滑动平均值。\n"
        "    tf.debugging.assert_all_finite(x, \"features\")",
    ),
    "advice.gradient_scale.title": ("The loss scale is too large for this gradient", "loss scale 对该梯度过大"),
    "advice.gradient_scale.when": (
        "The operator belongs to the backward pass, no operator of the forward pass overflowed before it in this step, and the loss scale is above 1. "
        "Where a replay has tried a low loss scale, its outcome decides.",
        "算子属于反向传播，该步中在它之前没有前向算子溢出，且 loss scale 大于 1。如果重放时已试过较低的 loss scale，则以其结果为准。",
    ),
    "advice.gradient_scale": (
        "The forward pass is clean and a gradient overflows: the loss scale is too large for it. Dynamic loss scaling halves it and goes on; this is "
        "a fault only if the scale falls to 1, where tf.keras 2 stops: then make the loss smaller, or compute this operator in float32. With a fixed "
        "loss scale, choose a smaller one.",
        "前向计算正常，而反向梯度溢出：loss scale 对该梯度过大。动态 loss scale 会自动减半后继续训练；只有降到 1 才算异常（tf.keras 2 不会再降）：此时请减小 loss，或以 float32 计算该算子。"
        "如果使用固定的 loss scale，请改用更小的值。",
    ),
    "advice.scale_at_floor.title": ("Not a scaling problem", "不是 loss scale 的问题"),
    "advice.scale_at_floor.when": (
        "The loss scale has fallen to 1 or below, and no replay showed that a lower one would cure it.",
        "loss scale 已降到 1 或以下，且重放未表明更低的 loss scale 可消除溢出。",
    ),
    "advice.scale_at_floor": (
        "The loss scale has fallen to {loss_scale}, and it still overflows: a smaller scale won't help. The forward pass or the data overflows without "
        "any scaling: look for the first operator above, the input range, the learning rate.",
        "loss scale 已降到 {loss_scale}，仍然溢出：继续减小没有用处。不经缩放，前向计算或数据本身就会溢出：请检查上面的首个溢出算子、输入范围和学习率。",
    ),
    "advice.padding.title": ("Only padding overflows", "仅填充区域溢出"),
    "advice.padding.when": (
        "Overflow values stand only in the padding of a private format.",
        "溢出值仅出现在私有格式的填充区域。",
    ),
    "advice.padding": (
        "The overflow values ({elements} of them) stand only in the padding that {format} adds to {tensor}: the result is right. If the overflow flag "
        "disturbs loss scaling, use a static loss scale without overflow check, or keep a neighbouring operator in float32 so that the format does "
        "not spread to {op_type}.",
        "溢出值（共 {elements} 个）只出现在 {format} 格式为 {tensor} 添加的填充区域，结果是正确的。如果溢出标志干扰了 loss scale，"
        "可使用不检查溢出的静态 loss scale，或让相邻算子保持 float32，使该格式不再传播到 {op_type}。",
    ),
    "advice.custom_operator.title": ("A custom operator", "自定义算子"),
    "advice.custom_operator.when": (
        "The type is neither one of CANN's nor one of TensorFlow's operators.",
        "算子类型既不是 CANN 算子，也不是 TensorFlow 算子。",
    ),
    "advice.custom_operator": (
        "{op_type} is no operator of TensorFlow or CANN that is known here. Check its own formula: sums in float16, squares, exponentials and "
        "quotients overflow inside it; let it compute in float32 internally.",
        "{op_type} 不是已知的 TensorFlow 或 CANN 算子。请检查其计算公式：float16 的求和、平方、指数和除法都可能在内部溢出；可让其内部以 float32 计算。",
    ),
    "advice.integer_status.title": ("Integer arithmetic overflowed", "整数运算溢出"),
    "advice.integer_status.when": (
        "Bit 0x8, 0x10 or 0x80 of the status is set (Atlas training products).",
        "状态码的 0x8、0x10 或 0x80 位被置位（Atlas 训练系列产品）。",
    ),
    "advice.integer_status": (
        "The status reports integer arithmetic, not floating point: look at index computations, counters and casts to integers near {op_name}. Loss "
        "scaling and float32 don't change it; a wider integer type does.",
        "状态表明是整数运算溢出，而非浮点溢出：请检查 {op_name} 附近的索引计算、计数器和转整数操作。loss scale 与 float32 对此无效，可改用更宽的整数类型。",
    ),
    "advice.weights_lost.title": ("The weights are lost already", "权重已经损坏"),
    "advice.weights_lost.when": (
        "On a CPU or GPU: a weight, optimizer slot or accumulator was not finite before the step.",
        "在 CPU 或 GPU 上：该步开始之前，权重、优化器状态或累加器已非有限。",
    ),
    "advice.weights_lost": (
        "{name} was not finite before this step began: an earlier step spoiled it, and no change of precision brings it back. Go back to the last good "
        "checkpoint, and let something guard the weights: dynamic loss scaling skips steps whose gradients are not finite.\n"
        "    optimizer = tf.keras.mixed_precision.LossScaleOptimizer(optimizer)\n"
        "Where that is on already, look at what is not a gradient: states of layers (reset them), moving averages, assignments of your own, a learning rate of inf or nan, an optimizer's "
        "epsilon that is 0 in float16 (1e-8 is, 1e-4 is not).",
        "{name} 在该步开始之前就已非有限：它已被更早的训练步破坏，调整精度无法恢复。请回退到最近一个正常的检查点，并对权重加以保护：动态 loss scale 会跳过梯度非有限的步。\n"
        "    optimizer = tf.keras.mixed_precision.LossScaleOptimizer(optimizer)\n"
        "如果已经启用，请检查梯度之外的更新：层的状态（请重置）、滑动平均、自行编写的赋值、为 inf 或 nan 的学习率、在 float16 中变为 0 的优化器 epsilon（1e-8 会，1e-4 不会）。",
    ),
    "advice.masked_row.title": ("A whole row is masked", "整行都被屏蔽"),
    "advice.masked_row.when": (
        "A softmax gives NaN, and its input holds -Inf but neither NaN nor +Inf.",
        "softmax 的输出含有 NaN，而输入只含 -Inf，不含 NaN 或 +Inf。",
    ),
    "advice.masked_row": (
        "{op_type} gives NaN in {tensor} because all of a row of its input is -Inf: nothing is left to share out. Mask with a finite value, and see that "
        "each row keeps an element (padding rows too), or set such rows to 0 afterwards.\n"
        "    scores = tf.where(mask, scores, tf.cast(-1.0e4, scores.dtype))",
        "{op_type} 的输入中有一整行都是 -Inf，没有可分配的概率，因此 {tensor} 得到 NaN。请使用有限的掩码值，并保证每一行（包括填充行）至少保留一个元素，或事后将这些行置 0。\n"
        "    scores = tf.where(mask, scores, tf.cast(-1.0e4, scores.dtype))",
    ),
    "advice.power.title": ("A square or a power is too large", "平方或幂过大"),
    "advice.power.when": (
        "Square, Pow, SquaredDifference, L2Loss or Gelu made the overflow, and an input exceeds the root of MAX (255.9 for squares, 40.3 for cubes in float16).",
        "Square、Pow、SquaredDifference、L2Loss 或 Gelu 自身产生溢出，且输入超过 MAX 的相应方根（float16 下平方为 255.9，立方为 40.3）。",
    ),
    "advice.power": (
        "{tensor} holds {value}; raised to the power of {exponent} it leaves the type's range from {bound} on. Normalise before squaring, or square and "
        "sum in float32.\n"
        "    y = tf.reduce_mean(tf.square(tf.cast(x, tf.float32)))",
        "{tensor} 中含有 {value}；其 {exponent} 次幂从 {bound} 起就超出该类型的范围。请先归一化再做平方，或以 float32 计算平方与求和。\n"
        "    y = tf.reduce_mean(tf.square(tf.cast(x, tf.float32)))",
    ),
    "advice.optimizer_float16.title": ("Weights are updated in float16", "以 float16 更新权重"),
    "advice.optimizer_float16.when": (
        "An optimizer's update operator (ApplyAdam and others), or on a CPU or GPU an operator in the optimizer's scope, overflows on float16 tensors.",
        "优化器的更新算子（ApplyAdam 等），或者在 CPU、GPU 上位于优化器 scope 内的算子，在 float16 张量上溢出。",
    ),
    "advice.optimizer_float16": (
        "The optimizer did it: {op_type} works on float16, where an epsilon of 1e-8 becomes 0, squared gradients overflow from 256 on, and small updates vanish. Keep weights "
        "and optimizer state in float32, which is what mixed precision means: the policy is mixed_float16, not float16.\n"
        '    tf.keras.mixed_precision.set_global_policy("mixed_float16")',
        "溢出由优化器产生：{op_type} 直接在 float16 上更新，1e-8 的 epsilon 会变成 0，梯度从 256 起平方即溢出，较小的更新量也会丢失。权重和优化器状态应保持 float32，"
        "这正是混合精度的含义：策略应为 mixed_float16，而不是 float16。\n"
        '    tf.keras.mixed_precision.set_global_policy("mixed_float16")',
    ),
    "advice.dot_product.title": ("The products add up beyond the type's range", "乘加结果超出表示范围"),
    "advice.dot_product.when": (
        "A matrix product or convolution of the forward pass made the overflow in a float16 result.",
        "前向传播中的矩阵乘或卷积在 float16 结果中自身产生溢出。",
    ),
    "advice.dot_product": (
        "The inputs of {op_type} fit (up to {input_largest}), their sums of products don't: {tensor} overflows. Make the inputs smaller where they are made: "
        "LayerNorm or BatchNorm before this layer, smaller initial weights, weight decay.",
        "{op_type} 的输入在范围内（最大 {input_largest}），但乘积之和超出范围，{tensor} 溢出。请从源头减小输入：在该层之前加 LayerNorm 或 BatchNorm，"
        "减小初始权重，使用权重衰减。",
    ),
    "advice.dot_product.scores": (
        "The inputs of {op_type} fit (up to {input_largest}), their sums of products don't: {tensor} overflows. Divide attention scores by sqrt(d) before the "
        "product and not after, and normalise what goes in (LayerNorm).\n"
        "    scores = tf.matmul(q / tf.sqrt(tf.cast(d, q.dtype)), k, transpose_b=True)",
        "{op_type} 的输入在范围内（最大 {input_largest}），但乘积之和超出范围，{tensor} 溢出。注意力分数请在相乘之前（而非之后）除以 sqrt(d)，并对输入做归一化（LayerNorm）。\n"
        "    scores = tf.matmul(q / tf.sqrt(tf.cast(d, q.dtype)), k, transpose_b=True)",
    ),
    "advice.sum_range.title": ("The sum leaves the type's range", "求和结果超出表示范围"),
    "advice.sum_range.when": (
        "A sum or an addition of the forward pass made the overflow in a float16 result.",
        "前向传播中的求和或加法在 float16 结果中自身产生溢出。",
    ),
    "advice.sum_range": (
        "{op_type} adds finite values to more than {tensor} can hold. Use a mean where a sum is not needed, and compute losses in float32; in a residual "
        "network, normalise before the addition.\n"
        "    loss = tf.reduce_mean(tf.cast(per_example, tf.float32))",
        "{op_type} 把有限的值相加，结果超出 {tensor} 的表示范围。不必求和时请改用均值，损失函数请以 float32 计算；残差网络请在相加之前做归一化。\n"
        "    loss = tf.reduce_mean(tf.cast(per_example, tf.float32))",
    ),
    "advice.product_range.title": ("The product leaves the type's range", "乘积超出表示范围"),
    "advice.product_range.when": (
        "An elementwise product (Mul, Prod, Cumprod) of the forward pass made the overflow in a float16 result.",
        "前向传播中的逐元素乘积（Mul、Prod、Cumprod）在 float16 结果中自身产生溢出。",
    ),
    "advice.product_range": (
        "The factors of {op_type} fit (up to {input_largest}), their product in {tensor} doesn't. Two factors above 255.9 are enough in float16. Scale or "
        "normalise one of them first; squares of one's own (x * x in a norm, a variance, a distance) belong in float32.\n"
        "    y = (a * scale) * b                 # and not (a * b) * scale",
        "{op_type} 的各因子在范围内（最大 {input_largest}），而乘积 {tensor} 超出范围。float16 下两个因子都超过 255.9 即会溢出。请先对其中之一做缩放或归一化；"
        "自行编写的平方（范数、方差、距离中的 x * x）应以 float32 计算。\n"
        "    y = (a * scale) * b                 # 而不是 (a * b) * scale",
    ),
    "advice.mean_range.title": ("The sum inside the mean overflows", "求均值时内部的和溢出"),
    "advice.mean_range.when": (
        "A mean or an average pooling of the forward pass gives Inf in float16 although all its inputs are finite.",
        "前向传播中的均值或平均池化的输入全部有限，float16 结果却为 Inf。",
    ),
    "advice.mean_range": (
        "A mean lies between its elements (up to {input_largest}), so {tensor} can only be out of range because {op_type} sums in float16 before it divides. "
        "Take the mean in float32, or divide first.\n"
        "    y = tf.cast(tf.reduce_mean(tf.cast(x, tf.float32), axis=-1), x.dtype)",
        "均值必然落在各元素之间（最大 {input_largest}），因此 {tensor} 超出范围只能是因为 {op_type} 在相除之前以 float16 求和。请以 float32 求均值，或先除后加。\n"
        "    y = tf.cast(tf.reduce_mean(tf.cast(x, tf.float32), axis=-1), x.dtype)",
    ),
    "advice.ask_support.title": ("No known cause fits", "没有匹配的已知原因"),
    "advice.ask_support.when": (
        "No other rule fits, and the value was not inherited.",
        "没有其他规则适用，且溢出值不是由上游传入。",
    ),
    "advice.ask_support": (
        "Ask the vendor's support and attach: this report (report.json), the dump folder of this step, the versions of CANN, "
        "driver, TensorFlow and the adapter, and the precision options in use. If a file is named among the problems, dump that step again first.",
        "请联系厂商技术支持，并附上：本报告（report.json）、该步的 dump 目录、CANN、驱动、TensorFlow 与适配插件的版本，"
        "以及所用的精度选项。如果问题列表中列出了某个文件，请先重新 dump 该步。",
    ),
    "advice.ask_support.host": (
        "Look at the ranges of the inputs above: a result of float32 or bfloat16 that overflows is no matter of precision, the values "
        "themselves run away. Usual reasons are a learning rate that is too high, gradients that are not clipped, a layer without normalisation, or a quotient "
        "of something near 0. If a file is named among the problems, collect that step again first.\n"
        "    optimizer = tf.keras.optimizers.Adam(1e-4, clipnorm=1.0)",
        "请查看上面各输入的范围：float32 或 bfloat16 的结果溢出并非精度问题，而是数值本身发散。常见原因有学习率过高、梯度未裁剪、某层缺少归一化，"
        "或除以接近 0 的数。如果问题列表中列出了某个文件，请先重新采集该步。\n"
        "    optimizer = tf.keras.optimizers.Adam(1e-4, clipnorm=1.0)",
    ),
}
