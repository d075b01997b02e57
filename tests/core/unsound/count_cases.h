// Targets and published values that contradict the arrivals.
#pragma once

#include "tests/core/unsound/case.h"

namespace eventide::unsound {

inline std::vector<Case> TargetCases() {
  const char* kind = "targets without closed form and without counts";
  const auto notify = [](std::vector<Expr> shape, IndexRange index) {
    return [shape, index] {
      Base b;
      EventId e = b.g.AddEvents("e", shape);
      b.g.Call<Mix0>("work", {b.Scratch("s", {4})}, {}, {4, 4}).Notify(e, {index});
      return b.g;
    };
  };
  return {
      {kind,
       "a sum of two coordinates",
       notify({8}, At(0) + At(1)),
       {"event e, notified by grid work", "t0 + t1", "SetCounts"}},
      {kind,
       "a product of two coordinates",
       notify({16}, At(0) * At(1)),
       {"event e", "t0 * t1", "SetCounts"}},
      {kind, "a remainder", notify({4}, At(0) % 4), {"event e", "t0 % 4", "SetCounts"}},
      {kind,
       "a minimum of two coordinates",
       notify({4}, Min(At(0), At(1))),
       {"event e", "min(t0, t1)", "SetCounts"}},
      {kind,
       "a gather without counts",
       [] {
         Base b;
         EventId known = b.g.AddEvents("known", {1}), e = b.g.AddEvents("e", {8});
         TensorId n = b.g.AddPublished("n", {8}, 0, 7, known, {0});
         b.g.Call<Mix0>("count", {n}, {}, {1}).Notify(known, {0});
         b.g.Call<Mix0>("work", {b.Scratch("s", {8})}, {}, {8}).Notify(e, {b.g.Load(n, {At(0)})});
         return b.g;
       },
       {"event e, notified by grid work", "device tensor", "SetCounts"}},
      {kind,
       "an extent that varies by layer, unseen by the event",
       [] {
         Base b;
         EventId e = b.g.AddEvents("e", {1});
         b.g.BeginSection("layers", 3);
         b.g.Call<Mix0>("work", {b.Scratch("s", {3, 4})}, {}, {Layer() + 1}).Notify(e, {0});
         return b.g;
       },
       {"event e", "depends on the layer", "SetCounts"}},
  };
}

inline std::vector<Case> PublicationCases() {
  const char* kind = "publications that are missing, late or circular";
  return {
      {kind,
       "a load of an ordinary tensor",
       [] {
         Base b;
         b.g.Call<Mix0>("work", {b.y}, {}, {b.g.Load(b.x, {0})});
         return b.g;
       },
       {"tensor x", "no event publishes it", "AddPublished"}},
      {kind,
       "a load with an index too few",
       [] {
         Base b;
         EventId known = b.g.AddEvents("known", {1});
         TensorId n = b.g.AddPublished("n", {2, 2}, 0, 8, known, {0});
         b.g.Call<Mix0>("work", {b.y}, {}, {b.g.Load(n, {0})});
         return b.g;
       },
       {"tensor n", "1 indices", "2 dims"}},
      {kind,
       "an unknown publication event",
       [] {
         Base b;
         b.g.AddPublished("n", {1}, 0, 8, EventId{4}, {0});
         b.Produce();
         return b.g;
       },
       {"tensor n", "event that does not exist"}},
      {kind,
       "a publication with wrong dims",
       [] {
         Base b;
         EventId known = b.g.AddEvents("known", {1});
         b.g.AddPublished("n", {1}, 0, 8, known, {0, 0});
         b.Produce();
         return b.g;
       },
       {"tensor n", "2 indices of event known", "1 dims"}},
      {kind,
       "an empty range of values",
       [] {
         Base b;
         EventId known = b.g.AddEvents("known", {1});
         b.g.AddPublished("n", {1}, 9, 8, known, {0});
         b.Produce();
         return b.g;
       },
       {"tensor n", "[9, 8]", "empty"}},
      {kind,
       "nobody notifies the publication",
       [] {
         Base b;
         EventId known = b.g.AddEvents("known", {1});
         TensorId n = b.g.AddPublished("n", {1}, 0, 8, known, {0});
         b.g.Call<Mix0>("count", {n}, {}, {1});
         return b.g;
       },
       {"tensor n", "event known", "notified by nobody"}},
      {kind,
       "nobody writes what is published",
       [] {
         Base b;
         EventId known = b.g.AddEvents("known", {1});
         b.g.AddPublished("n", {1}, 0, 8, known, {0});
         b.g.Call<Mix0>("count", {b.x}, {}, {1}).Notify(known, {0});
         return b.g;
       },
       {"tensor n", "event known", "no grid writes it"}},
      {kind,
       "another grid publishes than the one that writes",
       [] {
         Base b;
         EventId known = b.g.AddEvents("known", {1});
         TensorId n = b.g.AddPublished("n", {1}, 0, 8, known, {0});
         b.g.Call<Mix0>("count", {n}, {}, {1});
         b.g.Call<Mix0>("other", {b.x}, {}, {1}).Notify(known, {0});
         b.g.Call<Mix0>("work", {b.Scratch("s", {8})}, {}, {b.g.Load(n, {0})});
         return b.g;
       },
       {"tensor n is loaded before its publication", "grid count", "event known"}},
      {kind,
       "its own value says when it is published",
       [] {
         Base b;
         EventId known = b.g.AddEvents("known", {1});
         TensorId n = b.g.AddPublished("n", {1}, 0, 8, known, {0});
         b.g.SetCounts(known, n);
         b.g.Call<Mix0>("count", {n}, {}, {1}).Notify(known, {0});
         b.g.Call<Mix0>("work", {b.Scratch("s", {8})}, {}, {b.g.Load(n, {0})});
         return b.g;
       },
       {"tensor n", "depends on its own values"}},
      {kind,
       "counts that are not published",
       [] {
         Base b;
         EventId e = b.g.AddEvents("e", {b.rows});
         b.g.SetCounts(e, b.x);
         b.Produce();
         return b.g;
       },
       {"event e", "counts x", "AddPublished"}},
      {kind,
       "counts of another shape",
       [] {
         Base b;
         EventId known = b.g.AddEvents("known", {1}), e = b.g.AddEvents("e", {b.rows, 2});
         b.g.SetCounts(e, b.g.AddPublished("n", {64}, 0, 8, known, {0}));
         b.Produce();
         return b.g;
       },
       {"event e has 2 dims", "n have 1"}},
      {kind,
       "extents larger than the event they notify",
       [] {
         Base b;
         EventId known = b.g.AddEvents("known", {1}), e = b.g.AddEvents("e", {8});
         TensorId n = b.g.AddPublished("n", {1}, 0, 9, known, {0});
         b.g.Call<Mix0>("count", {n}, {}, {1}).Notify(known, {0});
         b.g.Call<Mix0>("work", {b.Scratch("s", {16})}, {}, {b.g.Load(n, {0})}).Notify(e, {At(0)});
         return b.g;
       },
       {"grid work", "event e out of bounds", "[8, 9)"}},
      {kind,
       "a load behind the end of its tensor",
       [] {
         Base b;
         EventId known = b.g.AddEvents("known", {1});
         TensorId n = b.g.AddPublished("n", {3}, 0, 9, known, {0});
         b.g.Call<Mix0>("count", {n}, {}, {1}).Notify(known, {0});
         b.g.BeginSection("layers", 4);
         b.g.Call<Mix0>("work", {b.Scratch("s", {4, 16})}, {}, {b.g.Load(n, {Layer()})});
         return b.g;
       },
       {"grid work", "element 3 of tensor n", "which has 3"}},
  };
}

}  // namespace eventide::unsound
