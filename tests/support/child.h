// The binary (or another program) as a process of its own, for what happens while it runs: its input stays open, its
// output is read as it comes, signals can be sent.
#pragma once

#include <fcntl.h>
#include <pty.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/run_binary.h"

namespace eventide {

class Child {
 public:
  enum class Stderr {
    kDropped,
    kPipe,      // together with stdout
    kTerminal,  // a terminal of its own: `Terminal()` is what it showed
  };

  explicit Child(std::vector<std::string> arguments, Stderr to = Stderr::kDropped,
                 const std::string& program = Binary()) {
    int in[2], out[2], slave = -1;
    REQUIRE(pipe2(in, O_CLOEXEC) == 0);
    REQUIRE(pipe2(out, O_CLOEXEC) == 0);
    if (to == Stderr::kTerminal) {
      REQUIRE(openpty(&terminal_, &slave, nullptr, nullptr, nullptr) == 0);
      fcntl(terminal_, F_SETFL, O_NONBLOCK);
    }
    arguments.insert(arguments.begin(), program);
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    pid_ = fork();
    REQUIRE(pid_ >= 0);
    if (pid_ == 0) {
      dup2(in[0], STDIN_FILENO);
      dup2(out[1], STDOUT_FILENO);
      dup2(to == Stderr::kTerminal ? slave
           : to == Stderr::kPipe   ? out[1]
                                   : open("/dev/null", O_WRONLY),
           STDERR_FILENO);
      execv(argv[0], argv.data());
      _exit(127);
    }
    close(in[0]);
    close(out[1]);
    if (slave >= 0) close(slave);
    in_ = in[1];
    out_ = out[0];
  }
  ~Child() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    close(in_);
    close(out_);
    if (terminal_ >= 0) close(terminal_);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  void Write(const std::string& text) {
    REQUIRE(write(in_, text.data(), text.size()) == static_cast<ssize_t>(text.size()));
  }
  // Reads until the output holds `text`; false: it ended before.
  bool ReadUntil(const std::string& text) {
    while (output_.find(text) == std::string::npos) {
      if (!ReadSome()) return false;
    }
    return true;
  }
  void Signal(int number) { REQUIRE(kill(pid_, number) == 0); }
  // Reads to the end and waits: the exit code, or -1 where a signal ended it.
  int Wait() {
    while (ReadSome()) {
    }
    int status = 0;
    REQUIRE(waitpid(pid_, &status, 0) == pid_);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  const std::string& output() const { return output_; }
  // What stands in the terminal's buffer: a few kilobytes.
  std::string Terminal() {
    std::string text;
    char buffer[4096];
    for (ssize_t bytes; (bytes = read(terminal_, buffer, sizeof(buffer))) > 0;) {
      text.append(buffer, static_cast<size_t>(bytes));
    }
    return text;
  }

 private:
  bool ReadSome() {
    char buffer[4096];
    const ssize_t bytes = read(out_, buffer, sizeof(buffer));
    if (bytes > 0) output_.append(buffer, static_cast<size_t>(bytes));
    return bytes > 0;
  }

  pid_t pid_ = -1;
  int in_ = -1, out_ = -1, terminal_ = -1;
  std::string output_;
};

}  // namespace eventide
