# SPDX-FileCopyrightText: the apex authors
# SPDX-License-Identifier: BSD-3-Clause
# PyTorch's side of `apex_bench ops` and `optim`: reads a request a line, answers "ms X" or "none REASON".
# The same shapes, warm-up, cold caches and medians as our side.
import gc, statistics, sys, time
import torch
import torch.nn.functional as F

device, runs = torch.device(sys.argv[1]), int(sys.argv[2])
cuda = device.type == "cuda"
torch.backends.cudnn.benchmark = True
if cuda:
    torch.cuda.set_device(device)
    l2 = torch.cuda.get_device_properties(device).L2_cache_size
    buffer = torch.empty(max(256 << 20, 2 * l2), dtype=torch.uint8, device=device)
else:
    buffer = torch.empty(64 << 20, dtype=torch.uint8)
DTYPES = {"f64": torch.float64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


def measure(run):
    for _ in range(3):
        run()
    if not cuda:
        times = []
        for _ in range(runs):
            buffer.fill_(1)
            start = time.perf_counter()
            run()
            times.append(1e3 * (time.perf_counter() - start))
        return statistics.median(times)
    begin = [torch.cuda.Event(enable_timing=True) for _ in range(runs)]
    end = [torch.cuda.Event(enable_timing=True) for _ in range(runs)]
    torch.cuda.synchronize()
    for a, b in zip(begin, end):
        buffer.fill_(1)
        a.record()
        run()
        b.record()
    torch.cuda.synchronize()
    return statistics.median(a.elapsed_time(b) for a, b in zip(begin, end))


def rand(*sizes, dtype=torch.float32, last=False):
    t = torch.rand(*sizes, device=device, dtype=torch.float32).mul_(2).sub_(1).to(dtype)
    return t.contiguous(memory_format=torch.channels_last) if last else t


def copy(nbytes):
    a = torch.rand(int(nbytes) // 4, device=device)
    b = torch.empty_like(a)
    return lambda: b.copy_(a)


def cast(n, source, target):
    a = rand(int(n), dtype=DTYPES[source])
    b = torch.empty(int(n), dtype=DTYPES[target], device=device)
    return lambda: b.copy_(a)


def channels_last(n, c, h, w, dtype):
    a = rand(int(n), int(c), int(h), int(w), dtype=DTYPES[dtype])
    b = torch.empty_like(a, memory_format=torch.channels_last)
    return lambda: b.copy_(a)


def add(n, dtype):
    a, b = rand(int(n), dtype=DTYPES[dtype]), rand(int(n), dtype=DTYPES[dtype])
    y = torch.empty_like(a)
    return lambda: torch.add(a, b, out=y)


def relu(n, dtype):
    a = rand(int(n), dtype=DTYPES[dtype])
    y = torch.empty_like(a)
    return lambda: torch.clamp_min(a, 0, out=y)


aten = torch.ops.aten
ACTIVATIONS = {  # forward and backward of x, and of dy and x
    "gelu": (lambda x: aten.gelu(x), lambda g, x: aten.gelu_backward(g, x)),
    "gelu_tanh": (lambda x: aten.gelu(x, approximate="tanh"), lambda g, x: aten.gelu_backward(g, x, approximate="tanh")),
    "silu": (lambda x: aten.silu(x), lambda g, x: aten.silu_backward(g, x)),
    "leaky_relu": (lambda x: aten.leaky_relu(x, 0.2), lambda g, x: aten.leaky_relu_backward(g, x, 0.2, False)),
    "elu": (lambda x: aten.elu(x, 1.0), lambda g, x: aten.elu_backward(g, 1.0, 1, 1, False, x)),
    "softplus": (lambda x: aten.softplus(x), lambda g, x: aten.softplus_backward(g, x, 1, 20)),
    "clamp": (lambda x: torch.clamp(x, -0.5, 0.5), None),
    "hardtanh": (lambda x: aten.hardtanh(x, -0.5, 0.5), lambda g, x: aten.hardtanh_backward(g, x, -0.5, 0.5)),
    "log_sigmoid": (lambda x: F.logsigmoid(x), None),
}


def activation(backward, name, n, dtype):
    x = rand(int(n), dtype=DTYPES[dtype]).mul_(4)
    forward, slope = ACTIVATIONS[name]
    if not backward:
        return lambda: forward(x)
    if slope is None:
        raise NotImplementedError("no backward of its own")
    g = torch.rand_like(x)
    return lambda: slope(g, x)


LOSSES = {
    "mse_loss": F.mse_loss, "l1_loss": F.l1_loss, "smooth_l1_loss": F.smooth_l1_loss,
    "huber_loss": lambda x, t, reduction="mean": F.huber_loss(x, t, delta=0.5, reduction=reduction),
    "binary_cross_entropy": F.binary_cross_entropy,
    "binary_cross_entropy_with_logits": F.binary_cross_entropy_with_logits, "kl_div": F.kl_div,
}


def loss(backward, name, n, dtype):
    x, t = torch.rand(int(n), device=device).to(DTYPES[dtype]), torch.rand(int(n), device=device).to(DTYPES[dtype])
    if name == "binary_cross_entropy":
        x = x.mul_(0.9).add_(0.05)
    if not backward:
        return lambda: LOSSES[name](x, t)
    x.requires_grad_()
    value = LOSSES[name](x, t, reduction="sum")
    return lambda: torch.autograd.grad(value, x, retain_graph=True)


def nll(backward, n, classes, side, dtype):
    n, classes, side = int(n), int(classes), int(side)
    x = rand(n, classes, side, side, dtype=DTYPES[dtype]).requires_grad_(backward)
    labels = (torch.arange(n * side * side, device=device) * 7919 % classes).view(n, side, side)
    if not backward:
        return lambda: F.nll_loss(x, labels)
    value = F.nll_loss(x, labels, reduction="sum")
    return lambda: torch.autograd.grad(value, x, retain_graph=True)


def sum_(rows, columns, dim, dtype):
    x = rand(int(rows), int(columns), dtype=DTYPES[dtype])
    dims = [0, 1] if dim == "all" else [int(dim)]
    return lambda: torch.sum(x, dims, dtype=torch.float32)


def max_pool(backward, n, c, h, w, dtype):
    x = rand(int(n), int(c), int(h), int(w), dtype=DTYPES[dtype], last=True)
    if not backward:
        return lambda: torch.ops.aten.max_pool2d_with_indices(x, [3, 3], [2, 2], [1, 1])
    y, indices = torch.ops.aten.max_pool2d_with_indices(x, [3, 3], [2, 2], [1, 1])
    dy = torch.rand_like(y)
    return lambda: torch.ops.aten.max_pool2d_with_indices_backward(
        dy, x, [3, 3], [2, 2], [1, 1], [1, 1], False, indices)


def image_normalize(n, c, h, w, dtype):
    x = torch.randint(0, 256, (int(n), int(h), int(w), int(c)), dtype=torch.uint8, device=device).permute(0, 3, 1, 2)
    mean = torch.tensor([123.675, 116.28, 103.53], device=device).view(1, 3, 1, 1)
    std = torch.tensor([58.395, 57.12, 57.375], device=device).view(1, 3, 1, 1)
    return lambda: x.float().sub_(mean).div_(std).to(DTYPES[dtype])


def batch_norm(residual, backward, n, c, h, w, dtype):
    sizes = int(n), int(c), int(h), int(w)
    x = rand(*sizes, dtype=DTYPES[dtype], last=True).requires_grad_(backward)
    z = rand(*sizes, dtype=DTYPES[dtype], last=True).requires_grad_(backward) if residual else None
    weight, bias = torch.ones(sizes[1], device=device), torch.zeros(sizes[1], device=device)
    weight.requires_grad_(backward), bias.requires_grad_(backward)
    mean, var = torch.zeros(sizes[1], device=device), torch.ones(sizes[1], device=device)

    def forward():
        y = F.batch_norm(x, mean, var, weight, bias, True, 0.1, 1e-5)
        return F.relu_(y + z if residual else y)

    if not backward:
        def run():
            with torch.no_grad():
                forward()
        return run
    y = forward()
    dy = rand(*sizes, dtype=DTYPES[dtype], last=True)
    inputs = [x, weight, bias] + ([z] if residual else [])
    return lambda: torch.autograd.grad(y, inputs, dy, retain_graph=True)


def bn_stats(n, c, h, w, dtype):
    x = rand(int(n), int(c), int(h), int(w), dtype=DTYPES[dtype], last=True)
    if not cuda:
        raise NotImplementedError("batch_norm_stats is CUDA's alone")
    return lambda: torch.batch_norm_stats(x, 1e-5)


def cross_entropy(backward, rows, classes, dtype):
    x = rand(int(rows), int(classes), dtype=DTYPES[dtype]).requires_grad_(backward)
    labels = torch.arange(int(rows), device=device) * 7919 % int(classes)
    if not backward:
        return lambda: F.cross_entropy(x, labels, reduction="none")
    loss = F.cross_entropy(x, labels, reduction="none")
    d = torch.full_like(loss, 0.5)
    return lambda: torch.autograd.grad(loss, x, d, retain_graph=True)


def softmax(backward, rows, columns, dtype):
    x = rand(int(rows), int(columns), dtype=DTYPES[dtype])
    if not backward:
        return lambda: torch.softmax(x, 1)
    y, dy = torch.softmax(x, 1), torch.rand_like(x)
    return lambda: torch.ops.aten._softmax_backward_data(dy, y, 1, x.dtype)


def matmul(m, n, k, dtype):
    a, b = rand(int(m), int(k), dtype=DTYPES[dtype]), rand(int(k), int(n), dtype=DTYPES[dtype])
    c = torch.empty(int(m), int(n), dtype=DTYPES[dtype], device=device)
    return lambda: torch.mm(a, b, out=c)


def linear(which, rows, inputs, outputs, dtype):
    t, rows, inputs, outputs = DTYPES[dtype], int(rows), int(inputs), int(outputs)
    x, w, dy, bias = rand(rows, inputs, dtype=t), rand(outputs, inputs, dtype=t), rand(rows, outputs, dtype=t), rand(outputs, dtype=t)
    if which == "fwd":
        return lambda: F.linear(x, w, bias)
    if which == "dgrad":
        return lambda: torch.mm(dy, w)

    def run():
        torch.mm(dy.t(), x)
        torch.sum(dy, 0)
    return run


def conv(which, n, c, h, w, k, r, stride, padding, dilation, groups, transposed, dtype):
    n, c, h, w, k, r, stride, padding, dilation, groups = map(int, (n, c, h, w, k, r, stride, padding, dilation, groups))
    x, weight = rand(n, c, h, w, dtype=DTYPES[dtype], last=True), rand(k, c // groups, r, r, dtype=DTYPES[dtype], last=True)
    if which == "fwd" and transposed == "0":
        return lambda: F.conv2d(x, weight, None, stride, padding, dilation, groups)
    y = torch.rand_like(F.conv2d(x, weight, None, stride, padding, dilation, groups))
    mask = [which == "dgrad", which == "wgrad", False]
    if transposed == "1":  # the convolution turned round: its forward is our data gradient, and the other way about
        if which == "dgrad":
            return lambda: F.conv_transpose2d(y, weight, None, stride, padding, 0, groups, dilation)
        mask = [which == "fwd", which == "wgrad", False]
        x, y = y, x
    return lambda: torch.ops.aten.convolution_backward(
        y, x, weight, None, [stride] * 2, [padding] * 2, [dilation] * 2, transposed == "1", [0, 0], groups, mask)


def heads(which, batch, count, length, depth, dtype):
    sizes, t = (int(batch), int(length), int(count), int(depth)), DTYPES[dtype]
    q, k = rand(*sizes, dtype=t).transpose(1, 2), rand(*sizes, dtype=t).transpose(1, 2)
    scores = rand(sizes[0], sizes[2], sizes[1], sizes[1], dtype=t)
    if which == "scores":
        return lambda: torch.matmul(q, k.transpose(2, 3), out=scores)
    return lambda: torch.matmul(scores, k)


def baddbmm(batch, m, n, k, dtype):
    t = DTYPES[dtype]
    a, b = rand(int(batch), int(m), int(k), dtype=t), rand(int(batch), int(k), int(n), dtype=t)
    c = rand(int(batch), int(m), int(n), dtype=t)
    return lambda: torch.baddbmm(c, a, b, beta=0.5, alpha=0.125, out=c)


FUSED = {"fused": True} if cuda else {}  # versions without it run on CPUs only


def parameters(model):
    if model == "bert-large":
        sizes = [30522 * 1024, 512 * 1024, 2048, 1024, 1024]
        for _ in range(24):
            sizes += [1024 * 1024, 1024] * 4
            sizes += [1024, 1024, 4096 * 1024, 4096, 1024 * 4096, 1024, 1024, 1024]
    else:
        sizes = [64 * 147, 64, 64]
        width = 64
        for count, m in zip([3, 4, 6, 3], [64, 128, 256, 512]):
            for i in range(count):
                sizes += [width * m, m, m, 9 * m * m, m, m, 4 * m * m, 4 * m, 4 * m]
                if i == 0:
                    sizes += [width * 4 * m, 4 * m, 4 * m]
                width = 4 * m
        sizes += [2048 * 1000, 1000]
    return [rand(s) for s in sizes]


def sgd(model):
    params = parameters(model)
    for p in params:
        p.grad = torch.rand_like(p)
    optimizer = torch.optim.SGD(params, lr=0.1, momentum=0.9, weight_decay=1e-4, **FUSED)
    return optimizer.step


def adam(model):
    params = parameters(model)
    for p in params:
        p.grad = torch.rand_like(p)
    optimizer = torch.optim.AdamW(params, lr=1e-3, weight_decay=0.01, **FUSED)
    return optimizer.step


def l2norm(model):
    grads = parameters(model)
    return lambda: torch.nn.utils.get_total_norm(grads)


def binary(name, n, dtype):
    a, b = (torch.rand(int(n), device=device).mul_(1.5).add_(0.5).to(DTYPES[dtype]) for _ in range(2))
    y = torch.empty_like(a)
    f = getattr(torch, name)
    return lambda: f(a, b, out=y)


def unary(name, n, dtype):
    x = torch.rand(int(n), device=device).mul_(1.5).add_(0.5).to(DTYPES[dtype])
    y = torch.empty_like(x)
    f = getattr(torch, name)
    return lambda: f(x, out=y)


def scale(n, dtype):
    x = rand(int(n), dtype=DTYPES[dtype])
    return lambda: torch.add(0.25, x, alpha=1.5)


def compare(n, dtype):
    a, b = rand(int(n), dtype=DTYPES[dtype]), rand(int(n), dtype=DTYPES[dtype])
    y = torch.empty(int(n), dtype=torch.bool, device=device)
    return lambda: torch.lt(a, b, out=y)


def where(n, dtype):
    a, b = rand(int(n), dtype=DTYPES[dtype]), rand(int(n), dtype=DTYPES[dtype])
    condition, y = a < b, torch.empty_like(a)
    return lambda: torch.where(condition, a, b, out=y)


def dropout(n, dtype):
    x = rand(int(n), dtype=DTYPES[dtype])
    return lambda: F.dropout(x, 0.5)


def reduce(name, rows, columns, dtype):
    if dtype == "bool":
        x = torch.ones(int(rows), int(columns), dtype=torch.bool, device=device)
    else:
        x = rand(int(rows), int(columns), dtype=DTYPES[dtype])
    f = getattr(torch, {"max": "amax", "min": "amin"}.get(name, name))
    return lambda: f(x, 1)


def cumsum(rows, columns, dtype):
    x = rand(int(rows), int(columns), dtype=DTYPES[dtype])
    y = torch.empty_like(x)
    return lambda: torch.cumsum(x, 1, out=y)


def move(*words):
    name, (rows, columns, dtype) = " ".join(words[:-3]), words[-3:]
    rows, columns = int(rows), int(columns)
    x = rand(rows, columns, dtype=DTYPES[dtype])
    return {
        "reshape of a transposed matrix": lambda: x.t().reshape(1, -1),
        "permute and contiguous": lambda: x.permute(1, 0).contiguous(),
        "narrow and copy": lambda: x.narrow(1, 64, columns // 2).clone(),
        "slice and copy": lambda: x[1::2].clone(),
        "flip": lambda: torch.flip(x, [1]),
        "pad": lambda: F.pad(x, (32, 32)),
        "cat": lambda: torch.cat([x, x], 1),
        "expand and copy": lambda: x[:1].expand(rows, columns).contiguous(),
    }[name]


def to_device(n, dtype):
    x = torch.rand(int(n), dtype=DTYPES[dtype])
    return lambda: x.to(device)


def table(which, tokens, entries, features, dtype):
    weight = rand(int(entries), int(features), dtype=DTYPES[dtype]).requires_grad_(which == "bwd")
    indices = torch.randint(int(entries), (int(tokens),), device=device)
    if which == "select":
        return lambda: weight.index_select(0, indices)
    if which == "fwd":
        return lambda: F.embedding(indices, weight)
    y = F.embedding(indices, weight)
    dy = torch.rand_like(y)
    return lambda: torch.autograd.grad(y, weight, dy, retain_graph=True)


def gather(scatter, rows, columns, dtype):
    x = rand(int(rows), int(columns), dtype=DTYPES[dtype])
    index = torch.randint(int(columns), x.shape, device=device)
    if scatter:
        return lambda: torch.zeros_like(x).scatter_add_(1, index, x)
    return lambda: torch.gather(x, 1, index)


def one_hot(rows, classes):
    labels = torch.arange(int(rows), device=device) * 7919 % int(classes)
    return lambda: F.one_hot(labels, int(classes))


def sort(rows, columns, dtype):
    x = rand(int(rows), int(columns), dtype=DTYPES[dtype])
    return lambda: torch.sort(x, dim=1, stable=True)


def topk(k, rows, columns, dtype):
    x = rand(int(rows), int(columns), dtype=DTYPES[dtype])
    return lambda: torch.topk(x, int(k), 1)


def log_softmax(rows, columns, dtype):
    x = rand(int(rows), int(columns), dtype=DTYPES[dtype])
    return lambda: torch.log_softmax(x, 1)


def avg_pool(adaptive, n, c, h, w, dtype):
    x = rand(int(n), int(c), int(h), int(w), dtype=DTYPES[dtype], last=True)
    return (lambda: F.adaptive_avg_pool2d(x, 1)) if adaptive else (lambda: F.avg_pool2d(x, 2))


def batch_norm_eval(n, c, h, w, dtype):
    x = rand(int(n), int(c), int(h), int(w), dtype=DTYPES[dtype])
    mean, var = torch.full((int(c),), 0.25, device=device), torch.full((int(c),), 0.5, device=device)
    return lambda: F.batch_norm(x, mean, var, var, mean, False)


OPS = {
    "copy": copy, "cast": cast, "channels_last": channels_last, "add": add, "relu": relu, "sum": sum_,
    "act_fwd": lambda *a: activation(False, *a), "act_bwd": lambda *a: activation(True, *a),
    "loss_fwd": lambda *a: loss(False, *a), "loss_bwd": lambda *a: loss(True, *a),
    "nll_fwd": lambda *a: nll(False, *a), "nll_bwd": lambda *a: nll(True, *a),
    "max_pool_fwd": lambda *a: max_pool(False, *a), "max_pool_bwd": lambda *a: max_pool(True, *a),
    "image_normalize": image_normalize,
    "bn_relu_fwd": lambda *a: batch_norm(False, False, *a), "bn_relu_bwd": lambda *a: batch_norm(False, True, *a),
    "bn_add_relu_fwd": lambda *a: batch_norm(True, False, *a), "bn_add_relu_bwd": lambda *a: batch_norm(True, True, *a),
    "bn_stats": bn_stats,
    "ce_fwd": lambda *a: cross_entropy(False, *a), "ce_bwd": lambda *a: cross_entropy(True, *a),
    "softmax_fwd": lambda *a: softmax(False, *a), "softmax_bwd": lambda *a: softmax(True, *a),
    "matmul": matmul, "heads": heads, "baddbmm": baddbmm,
    "linear_fwd": lambda *a: linear("fwd", *a), "linear_dgrad": lambda *a: linear("dgrad", *a),
    "linear_wgrad": lambda *a: linear("wgrad", *a),
    "conv_fwd": lambda *a: conv("fwd", *a), "conv_dgrad": lambda *a: conv("dgrad", *a),
    "conv_wgrad": lambda *a: conv("wgrad", *a),
    "binary": binary, "unary": unary, "scale": scale, "compare": compare, "where": where, "dropout": dropout,
    "reduce": reduce, "cumsum": cumsum, "move": move, "to_device": to_device,
    "embedding": lambda *a: table("fwd", *a), "embedding_bwd": lambda *a: table("bwd", *a),
    "index_select": lambda *a: table("select", *a),
    "gather": lambda *a: gather(False, *a), "scatter_add": lambda *a: gather(True, *a),
    "one_hot": one_hot, "sort": sort, "topk": topk, "log_softmax": log_softmax,
    "avg_pool2d": lambda *a: avg_pool(False, *a), "adaptive_avg_pool2d": lambda *a: avg_pool(True, *a),
    "batch_norm_eval": batch_norm_eval,
    "sgd": sgd, "adam": adam, "l2norm": l2norm,
}

print(torch.__version__, flush=True)
for line in sys.stdin:
    name, *arguments = line.split()
    run = None
    try:
        run = OPS[name](*arguments)
        answer = f"ms {measure(run)}"
    except Exception as error:
        answer = "none " + " ".join(f"{type(error).__name__}: {error}".split())[:200]
    del run
    gc.collect()
    if cuda:
        torch.cuda.empty_cache()
    print(answer, flush=True)
