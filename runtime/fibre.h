// Stacks that one thread switches between: what the simulator's roles run on.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace eventide {

// A stack with a function on it. Not copyable, not movable: a running fibre has pointers to it.
class Fibre {
 public:
  // `bytes` of stack, below which lies an inaccessible page.
  explicit Fibre(size_t bytes);
  ~Fibre();
  Fibre(const Fibre&) = delete;
  Fibre& operator=(const Fibre&) = delete;

  // Puts `body` at the start of the stack; whatever ran on it is forgotten. `body` must not return:
  // it ends by switching away for good.
  void Reset(void (*body)(void*), void* argument);

 private:
  friend class FibrePoint;
  static void Entry();

  std::byte* stack_ = nullptr;
  size_t bytes_;
  void (*body_)(void*) = nullptr;
  void* argument_ = nullptr;
#if defined(__x86_64__)
  void* stack_pointer_ = nullptr;
#else
  ucontext_t context_;
#endif
};

// Where a stack was left: the thread's own, or a fibre's.
class FibrePoint {
 public:
  // Leaves the stack we run on, remembered here (null fibre: the thread's own), and goes on with
  // `to`, or back to the thread's own stack if that is null.
  void Switch(Fibre* from, Fibre* to);

 private:
#if defined(__x86_64__)
  void* stack_pointer_ = nullptr;
#else
  ucontext_t context_;
#endif
};

}  // namespace eventide
