#include "tools/interrupt.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>

namespace eventide {
namespace {

constexpr int kSignals[] = {SIGINT, SIGTERM};

// Written by the handler on whichever thread gets the signal. Nothing else is published with them,
// so relaxed order is enough.
std::atomic<bool> deferring{false};
std::atomic<int> pending{0};
static_assert(std::atomic<int>::is_always_lock_free);  // what a handler may touch

void OnSignal(int number) {
  if (deferring.load(std::memory_order_relaxed) &&
      pending.exchange(number, std::memory_order_relaxed) == 0) {
    return;
  }
  _exit(128 + number);
}

}  // namespace

void CatchInterrupts() {
  for (const int number : kSignals) {
    struct sigaction action = {};
    if (sigaction(number, nullptr, &action) != 0 || action.sa_handler == SIG_IGN) continue;
    action = {};
    action.sa_handler = &OnSignal;
    action.sa_flags = SA_RESTART;  // nobody else has to know of EINTR
    sigaction(number, &action, nullptr);
  }
}

void DeferFirstInterrupt() {
  deferring.store(true, std::memory_order_relaxed);
}

int PendingInterrupt() {
  return pending.load(std::memory_order_relaxed);
}

}  // namespace eventide
