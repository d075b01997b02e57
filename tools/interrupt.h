// What SIGINT and SIGTERM do: the first lets a command that can be cut short say what it has, the
// second ends the process at once; either way with exit code 128 + the signal's number.
#pragma once

namespace eventide {

// From now on a signal ends the process at once. One that is ignored (nohup) stays so.
void CatchInterrupts();

// From now on the first signal only shows in PendingInterrupt.
void DeferFirstInterrupt();

// The signal that has come, or 0.
int PendingInterrupt();

}  // namespace eventide
