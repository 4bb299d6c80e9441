// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "peer.hpp"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "apex/core/error.hpp"

namespace bench {

TorchProcess::TorchProcess(const std::string& python, const char* script, const std::vector<std::string>& arguments) {
  int in[2], out[2];
  if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0)
    apex::fail(apex::Kind::exhausted, "no pipes left for the PyTorch process");
  std::signal(SIGPIPE, SIG_IGN);
  std::vector<std::string> words{python, "-c", script};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  child_ = fork();
  if (child_ == 0) {
    dup2(in[0], STDIN_FILENO);
    dup2(out[1], STDOUT_FILENO);
    execvp(argv[0], argv.data());
    _exit(127);
  }
  close(in[0]);
  close(out[1]);
  to_ = fdopen(in[1], "w");
  from_ = fdopen(out[0], "r");
  greeting_ = read_line();
  if (greeting_.empty())
    apex::fail(apex::Kind::data, apex::concat("--peer: '", python,
                                              "' runs no PyTorch that can do this; name another "
                                              "with --python"));
}

TorchProcess::~TorchProcess() {
  if (to_ != nullptr) std::fclose(to_);
  if (from_ != nullptr) std::fclose(from_);
  if (child_ > 0) waitpid(child_, nullptr, 0);
}

std::string TorchProcess::read_line() {
  std::string line;
  int c = std::fgetc(from_);
  for (; c != EOF && c != '\n'; c = std::fgetc(from_)) line += static_cast<char>(c);
  return c == EOF ? std::string() : line;
}

std::string TorchProcess::ask(const std::string& line) {
  std::fprintf(to_, "%s\n", line.c_str());
  std::fflush(to_);
  std::string answer = read_line();
  if (answer.empty()) apex::fail(apex::Kind::data, "the PyTorch process ended early");
  return answer;
}

}  // namespace bench
