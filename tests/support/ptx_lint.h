// Rules that a kernel's PTX must keep, whatever program it was made of: the forms of synchronisation that
// docs/memory_model.md argues for, and nothing else. Where a rule speaks of order it holds on every path
// through the kernel's control flow, not just in the order of the text.
#pragma once

#include <deque>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "jit/nvrtc.h"

namespace eventide {

struct PtxInstruction {
  std::string opcode;    // "red.release.gpu.global.add.u32"
  std::string operands;  // the rest
  bool predicated = false;
};

struct PtxKernel {
  std::vector<PtxInstruction> code;
  std::vector<std::vector<int>> next;  // by instruction: those that may follow
};

// The body of one kernel. Scopes of inline assembly ("{ .reg .pred p; ... }") are seen through.
class PtxParser {
 public:
  explicit PtxParser(const std::string& body) {
    for (const absl::string_view piece : absl::StrSplit(body, ';')) Statement(piece);
    kernel_.next.resize(kernel_.code.size());
    for (size_t i = 0; i < kernel_.code.size(); ++i) Follow(i);
  }
  PtxKernel Take() { return std::move(kernel_); }

 private:
  void Statement(absl::string_view piece) {
    std::string text(absl::StripAsciiWhitespace(piece));
    static const std::regex head("^([{}]|[A-Za-z_$%][\\w$]*:(?!:))\\s*");
    std::smatch match;
    while (std::regex_search(text, match, head)) {
      std::string label = match[1];
      text = match.suffix();
      if (label.size() < 2) continue;
      label.pop_back();
      labels_[label] = static_cast<int>(kernel_.code.size());
      label_ = label;
    }
    if (text.rfind(".branchtargets", 0) == 0) tables_[label_] = Names(text.substr(14));
    if (text.empty() || text[0] == '.') return;
    PtxInstruction instruction;
    if (text[0] == '@') {
      instruction.predicated = true;
      text = text.substr(text.find_first_of(" \t"));
      text = std::string(absl::StripLeadingAsciiWhitespace(text));
    }
    const size_t end = text.find_first_of(" \t\n");
    instruction.opcode = text.substr(0, end);
    if (end != std::string::npos)
      instruction.operands = std::string(absl::StripAsciiWhitespace(text.substr(end)));
    kernel_.code.push_back(std::move(instruction));
  }

  static std::vector<std::string> Names(const std::string& text) {
    static const std::regex name("[A-Za-z_$][\\w$]*");
    return {std::sregex_token_iterator(text.begin(), text.end(), name), {}};
  }

  void Follow(size_t i) {
    const PtxInstruction& at = kernel_.code[i];
    std::vector<std::string> targets;
    const bool leaves = at.opcode == "ret" || at.opcode == "exit" || at.opcode == "trap";
    if (at.opcode.rfind("bra", 0) == 0) targets = Names(at.operands);
    if (at.opcode.rfind("brx.idx", 0) == 0) targets = tables_[Names(at.operands).back()];
    for (const std::string& target : targets) {
      const auto found = labels_.find(target);
      if (found != labels_.end()) kernel_.next[i].push_back(found->second);
    }
    if ((targets.empty() && !leaves) || at.predicated) {
      if (i + 1 < kernel_.code.size()) kernel_.next[i].push_back(static_cast<int>(i) + 1);
    }
  }

  PtxKernel kernel_;
  std::string label_;
  std::map<std::string, int> labels_;
  std::map<std::string, std::vector<std::string>> tables_;
};

// "On no path does `to` follow `from` without a `between`."
struct PtxOrder {
  const char* name;
  const char *from, *between, *to;  // patterns of "opcode operands", from its start
};

inline std::vector<std::string> PtxOrderBreaches(const PtxKernel& kernel, const PtxOrder& rule) {
  const std::regex from(rule.from), between(rule.between), to(rule.to);
  const size_t n = kernel.code.size();
  enum : char { kPlain, kFrom, kBetween, kTo };
  std::vector<char> what(n, kPlain), open(n, 0);  // open: a `from` may lie behind
  const auto is = [](const std::string& text, const std::regex& pattern) {
    return std::regex_search(text, pattern, std::regex_constants::match_continuous);
  };
  std::deque<int> work;
  for (size_t i = 0; i < n; ++i) {
    const std::string text = absl::StrCat(kernel.code[i].opcode, " ", kernel.code[i].operands);
    what[i] = is(text, between) ? kBetween : is(text, from) ? kFrom : is(text, to) ? kTo : kPlain;
    // What is predicated may not happen: it does not order anything.
    if (what[i] == kBetween && kernel.code[i].predicated) what[i] = kPlain;
    if (what[i] == kFrom) work.push_back(static_cast<int>(i));
  }
  while (!work.empty()) {
    const int i = work.front();
    work.pop_front();
    for (const int next : kernel.next[static_cast<size_t>(i)]) {
      const size_t at = static_cast<size_t>(next);
      if (open[at]) continue;
      open[at] = 1;
      if (what[at] != kBetween) work.push_back(next);
    }
  }
  std::vector<std::string> breaches;
  for (size_t i = 0; i < n; ++i) {
    if (open[i] && what[i] == kTo)
      breaches.push_back(absl::StrCat(rule.name, ": ", kernel.code[i].opcode));
  }
  return breaches;
}

// What a kernel may say to memory beyond plain loads and stores; everything else is refused.
inline bool IsProvenForm(const std::string& opcode) {
  static const std::set<std::string> forms = {
      "red.release.gpu.global.add.u32",    // notify
      "red.relaxed.gpu.global.add.u32",    // progress
      "ld.acquire.gpu.global.u32",         // wait
      "ld.relaxed.gpu.global.u32",         // published values, the abort word
      "st.relaxed.gpu.global.u32",         // the abort word
      "ld.relaxed.gpu.global.u64",         // how long a slot's rows are
      "st.relaxed.gpu.global.u64",         // likewise
      "st.release.gpu.global.u32",         // a finish, after its stamp
      "atom.relaxed.gpu.global.add.u32",   // tickets
      "atom.acq_rel.gpu.global.add.u32",   // the last to arrive
      "ld.acquire.cta.shared::cta.u64",    // pages
      "atom.acq_rel.cta.shared::cta.add.u64",
      "atom.acq_rel.cta.shared::cta.cas.b64",
      "fence.mbarrier_init.release.cluster",
      "fence.proxy.async.global",
      "fence.proxy.async.shared::cta",
  };
  static const std::regex special(
      "(red|atom|fence|membar|multimem)\\b.*|(ld|st)\\.(acquire|release|relaxed|mmio)\\b.*|"
      "(ld|st)\\.volatile\\.global\\b.*|ld\\..*\\bnc\\b.*|ldu\\b.*|tex\\b.*|barrier\\.cluster\\b.*|"
      "griddepcontrol\\b.*");
  if (!std::regex_match(opcode, special) || forms.count(opcode)) return true;
  // Within a block: sums of counts that nothing else is ordered by.
  return opcode.rfind("atom.shared", 0) == 0 || opcode.rfind("red.shared", 0) == 0;
}

// Progress is counted where a role ends a task; a notify that lost its release would be one more.
inline constexpr int kProgressSites = 3;

// Where a role hands what it has stored to another warp to publish, its inline assembly says so in a comment
// of these words: no instruction tells such an arrival at an mbarrier from that of a dropped page.
inline constexpr char kHandsOver[] = "// eventide: hands over";

// One line for every breach. `ptx` is a megakernel's.
inline std::vector<std::string> LintPtx(const std::string& ptx) {
  static const std::regex mark(kHandsOver), comment("//[^\n]*");
  const std::string text =
      std::regex_replace(std::regex_replace(ptx, mark, "eventide.hands_over;\n//"), comment, "");
  std::vector<std::string> breaches;
  static const std::regex entry("\\.entry\\s+([\\w$]+)");
  std::vector<std::string> kernels(std::sregex_token_iterator(text.begin(), text.end(), entry, 1), {});
  if (kernels.size() != 1)
    breaches.push_back(absl::StrCat("one kernel: there are ", kernels.size()));
  if (std::regex_search(text, std::regex("cudaCGGetIntrinsicHandle|cg_sync|__cooperative")))
    breaches.push_back("no grid barrier: cooperative groups");
  const size_t body = text.find('{', text.find(".entry"));
  if (kernels.empty() || body == std::string::npos) return breaches;
  const PtxKernel kernel = PtxParser(text.substr(body + 1)).Take();

  std::map<std::string, int> count;
  bool bulk = false;
  for (const PtxInstruction& i : kernel.code) {
    ++count[i.opcode];
    bulk = bulk || i.opcode.rfind("cp.async.bulk.shared", 0) == 0;
    if (!IsProvenForm(i.opcode))
      breaches.push_back(absl::StrCat("proven forms only: ", i.opcode));
  }
  if (count["red.release.gpu.global.add.u32"] == 0)
    breaches.push_back("publication is a release at GPU scope: there is none");
  if (count["red.relaxed.gpu.global.add.u32"] > kProgressSites)
    breaches.push_back("publication is a release at GPU scope: relaxed additions beyond progress");
  if (count["ld.acquire.gpu.global.u32"] == 0)
    breaches.push_back("waits acquire at GPU scope: there is no acquire");

  // Before the block's own barrier, stores are of the other bank: the end of the kernel orders them.
  static constexpr char kStore[] = "st\\.(?!shared|volatile|relaxed|release|local|param|bulk|async)";
  static constexpr char kNotify[] = "red\\.release\\.gpu\\.global";
  std::vector<PtxOrder> orders = {
      {"a barrier of the role before it publishes", kStore, "(bar|barrier)\\.(cta\\.)?(sync|red)",
       kNotify},
      {"a barrier of the warp before one lane hands over", kStore,
       "(bar|barrier)\\.(cta\\.|warp\\.)?(sync|red)", "eventide\\.hands_over"}};
  if (bulk) {
    static constexpr char kFence[] = "fence\\.proxy\\.async(\\.global)? |(bar|barrier)\\.(cta\\.)?sync\\S* 0$";
    orders.push_back({"a proxy fence after stores and before they are published", kStore, kFence,
                      "red\\.release\\.gpu\\.global|eventide\\.hands_over"});
    orders.push_back({"a proxy fence after a wait and before the copy of what it guards",
                      "ld\\.acquire\\.gpu\\.global", kFence, "cp\\.async\\.bulk\\.shared"});
    orders.push_back({"a proxy fence after a page is had and before it is filled",
                      "mbarrier\\.(test|try)_wait|atom\\S*\\.shared",
                      "fence\\.proxy\\.async(\\.shared::cta)? ", "mbarrier\\.arrive\\.expect_tx"});
  }
  for (const PtxOrder& rule : orders) {
    for (std::string& breach : PtxOrderBreaches(kernel, rule)) breaches.push_back(std::move(breach));
  }
  return breaches;
}

// The same of the assembler's report and of what compiling cost.
inline std::vector<std::string> LintUsage(const Compiled& compiled, double max_cpu_milliseconds) {
  const KernelUsage& usage = compiled.usage;
  std::vector<std::string> breaches;
  if (usage.spill_bytes > 0) breaches.push_back(absl::StrCat("no spill: ", usage.spill_bytes, " bytes"));
  if (usage.stack_bytes > 0) breaches.push_back(absl::StrCat("no stack: ", usage.stack_bytes, " bytes"));
  if (usage.setmaxnreg_ignored) breaches.push_back("setmaxnreg is not ignored: it is");
  if (compiled.cpu_milliseconds > max_cpu_milliseconds)
    breaches.push_back(absl::StrCat("NVRTC's time: ", compiled.cpu_milliseconds, " ms of CPU"));
  return breaches;
}

}  // namespace eventide
