# SPDX-FileCopyrightText: the apex authors
# SPDX-License-Identifier: BSD-3-Clause
# PyTorch's side of `apex_bench step`: reads a number of steps a line, answers "BYTES MS": peak memory so far and the
# time of a step. Written as a PyTorch user would: channels-last, autocast for 16 bits (GradScaler with f16), gradients
# dropped each step, DistributedDataParallel over several ranks. On the CPU the loss is read each step.
import json, resource, statistics, sys, time
import torch
import torch.nn as nn
import torch.nn.functional as F

case = json.loads(sys.argv[1])
arch, batch, channels, classes, image = (case[k] for k in ("arch", "batch", "channels", "classes", "image"))
cuda = case["device"].startswith("cuda")
dtype = {"f64": torch.float64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[case["dtype"]]
half = case["dtype"] in ("f16", "bf16")
device = torch.device(case["device"])
torch.set_num_threads(case["threads"])
torch.manual_seed(0)
if cuda:
    torch.cuda.set_device(device)
    torch.backends.cudnn.benchmark = True


def conv(i, o, k, stride=1):
    return nn.Conv2d(i, o, k, stride, k // 2, bias=False)


class Basic(nn.Module):
    def __init__(self, i, o, stride):
        super().__init__()
        self.conv1, self.bn1 = conv(i, o, 3, stride), nn.BatchNorm2d(o)
        self.conv2, self.bn2 = conv(o, o, 3), nn.BatchNorm2d(o)
        self.relu = nn.ReLU(inplace=True)
        same = stride == 1 and i == o
        self.shortcut = nn.Identity() if same else nn.Sequential(conv(i, o, 1, stride), nn.BatchNorm2d(o))

    def forward(self, x):
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        y += self.shortcut(x)
        return self.relu(y)


class Bottleneck(nn.Module):
    def __init__(self, i, o, stride):
        super().__init__()
        m = o // 4
        self.conv1, self.bn1 = conv(i, m, 1), nn.BatchNorm2d(m)
        self.conv2, self.bn2 = conv(m, m, 3, stride), nn.BatchNorm2d(m)
        self.conv3, self.bn3 = conv(m, o, 1), nn.BatchNorm2d(o)
        self.relu = nn.ReLU(inplace=True)
        same = stride == 1 and i == o
        self.shortcut = nn.Identity() if same else nn.Sequential(conv(i, o, 1, stride), nn.BatchNorm2d(o))

    def forward(self, x):
        y = self.relu(self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x))))))
        y = self.bn3(self.conv3(y))
        y += self.shortcut(x)
        return self.relu(y)


def stage(block, i, o, count, stride):
    return [block(i if k == 0 else o, o, stride if k == 0 else 1) for k in range(count)]


if arch == "resnet20":
    layers = [conv(channels, 16, 3), nn.BatchNorm2d(16), nn.ReLU(True)]
    block, counts, widths = Basic, [3, 3, 3], [16, 16, 32, 64]
else:
    layers = [conv(channels, 64, 7, 2), nn.BatchNorm2d(64), nn.ReLU(True), nn.MaxPool2d(3, 2, 1)]
    block, counts, widths = {
        "resnet18": (Basic, [2, 2, 2, 2], [64, 64, 128, 256, 512]),
        "resnet34": (Basic, [3, 4, 6, 3], [64, 64, 128, 256, 512]),
        "resnet50": (Bottleneck, [3, 4, 6, 3], [64, 256, 512, 1024, 2048]),
    }[arch]
for k, count in enumerate(counts):
    layers += stage(block, widths[k], widths[k + 1], count, 1 if k == 0 else 2)
net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], classes))
net = net.to(device, torch.float64 if case["dtype"] == "f64" else torch.float32, memory_format=torch.channels_last)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4, **({"fused": True} if cuda else {}))
scaler = torch.cuda.amp.GradScaler(enabled=cuda and case["dtype"] == "f16")
if case["world"] > 1:
    torch.distributed.init_process_group(
        "nccl" if cuda else "gloo", init_method=f"tcp://127.0.0.1:{case['port']}", rank=case["rank"],
        world_size=case["world"])
    net = nn.parallel.DistributedDataParallel(
        net, device_ids=[device.index] if cuda else None, gradient_as_bucket_view=True)
if case["mode"] != "eager":
    net = torch.compile(net, mode=None if case["mode"] == "compile" else case["mode"])
x = torch.randn(batch, channels, image, image, device=device, dtype=next(net.parameters()).dtype)
x = x.contiguous(memory_format=torch.channels_last)
y = torch.arange(batch, device=device) % classes


def step():
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast(device.type, dtype=dtype if half else torch.bfloat16, enabled=half):
        loss = F.cross_entropy(net(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    return loss


def timed(steps):
    if cuda:
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated(), 1e3 * (time.perf_counter() - start) / steps
    times = []
    for _ in range(steps):
        start = time.perf_counter()
        step().item()
        times.append(1e3 * (time.perf_counter() - start))
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, statistics.median(times)


timed(3)
print(torch.__version__, flush=True)
for line in sys.stdin:
    print(*timed(int(line)), flush=True)
