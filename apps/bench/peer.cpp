// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "peer.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <sstream>

#include "apex/core/error.hpp"

namespace bench {
namespace {

// Channels-last, gradients dropped each step, the loss read each step: what a PyTorch user would write for the CPU.
constexpr const char* kScript = R"py(
import resource, sys, time
import torch
import torch.nn as nn
import torch.nn.functional as F

arch, image, batch, channels, classes, threads = sys.argv[1], *map(int, sys.argv[2:7])
torch.set_num_threads(threads)
torch.manual_seed(0)


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
net = net.to(memory_format=torch.channels_last)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
x = torch.randn(batch, channels, image, image).contiguous(memory_format=torch.channels_last)
y = torch.arange(batch) % classes


def step():
    optimizer.zero_grad(set_to_none=True)
    loss = F.cross_entropy(net(x), y)
    loss.backward()
    optimizer.step()
    return loss.item()


step()
print(torch.__version__, flush=True)
for line in sys.stdin:
    times = []
    for _ in range(int(line)):
        start = time.perf_counter()
        step()
        times.append(1e3 * (time.perf_counter() - start))
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, *times, flush=True)
)py";

}  // namespace

TorchPeer::TorchPeer(const std::string& python, const StepCase& s) {
  int in[2], out[2];
  if (pipe(in) != 0 || pipe(out) != 0) apex::fail(apex::Kind::exhausted, "no pipes left for the PyTorch process");
  std::signal(SIGPIPE, SIG_IGN);
  child_ = fork();
  if (child_ == 0) {
    dup2(in[0], STDIN_FILENO);
    dup2(out[1], STDOUT_FILENO);
    for (const int fd : {in[0], in[1], out[0], out[1]}) close(fd);
    const auto n = [](int v) { return std::to_string(v); };
    execlp(python.c_str(), python.c_str(), "-c", kScript, s.arch.c_str(), n(s.image).c_str(), n(s.batch).c_str(),
           n(s.channels).c_str(), n(s.classes).c_str(), n(s.threads).c_str(), static_cast<char*>(nullptr));
    _exit(127);
  }
  close(in[0]);
  close(out[1]);
  to_ = fdopen(in[1], "w");
  from_ = fdopen(out[0], "r");
  version_ = read_line();
  if (version_.empty())
    apex::fail(apex::Kind::data, apex::concat("--peer: '", python, "' runs no PyTorch; name another with --python"));
}

TorchPeer::~TorchPeer() {
  if (to_ != nullptr) std::fclose(to_);
  if (from_ != nullptr) std::fclose(from_);
  if (child_ > 0) waitpid(child_, nullptr, 0);
}

std::string TorchPeer::read_line() {
  std::string line;
  for (int c = std::fgetc(from_); c != EOF && c != '\n'; c = std::fgetc(from_)) line += static_cast<char>(c);
  return line;
}

Timing TorchPeer::run(int steps) {
  std::fprintf(to_, "%d\n", steps);
  std::fflush(to_);
  std::istringstream text(read_line());
  Timing out;
  text >> out.peak_kib;
  for (double ms; text >> ms;) out.ms.push_back(ms);
  if (static_cast<int>(out.ms.size()) != steps) apex::fail(apex::Kind::data, "the PyTorch process ended early");
  return out;
}

}  // namespace bench
