// From a case that fails to the smallest one that still fails in the same way: fields go to their
// simplest value or halfway there, lists lose elements, as long as anything helps.
#pragma once

#include <functional>

#include "stress/case.h"

namespace eventide {

struct MinimiseOptions {
  int most_runs = 300;
  double most_seconds = 20;
};

struct Minimised {
  StressCase smallest;
  StressOutcome outcome;  // of it
  int runs = 0;
};

// `run` is called with ever smaller cases; `failed` is what it said of `start`. Lists with one
// element for each request (prompts, outs, cancels) lose elements together.
Minimised Minimise(const StressCase& start, const StressOutcome& failed,
                   const std::function<StressOutcome(const StressCase&)>& run,
                   const MinimiseOptions& options = {});

// The value of a field at which nothing is left to simplify.
int64_t SimplestValue(const std::string& field);

}  // namespace eventide
