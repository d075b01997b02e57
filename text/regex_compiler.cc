// Regex::Compile: a recursive descent parser whose result is linked back to front, so that every
// node knows what follows it.
#include <limits>
#include <memory>

#include "core/status.h"
#include "text/regex.h"

namespace eventide {

class RegexCompiler {
 public:
  explicit RegexCompiler(absl::string_view pattern) : pattern_(pattern) {}

  absl::StatusOr<Regex> Compile() {
    if (pattern_.empty() || pattern_.size() > kMaxPatternBytes || !IsValidUtf8(pattern_)) {
      return Refuse("it is empty, longer than 4096 bytes or not UTF-8");
    }
    ASSIGN_OR_RETURN(Group group, ParseGroup(false, 0));
    if (!Done()) return Refuse("')' without '('");
    const int32_t accept = NewNode(Regex::Kind::kAccept, -1);
    regex_.start_ = Link(group, accept);
    if (regex_.MatchAt("", 0) != Regex::kNoMatch) return Refuse("it matches the empty string");
    return std::move(regex_);
  }

 private:
  static constexpr size_t kMaxPatternBytes = 4096;
  static constexpr int kMaxDepth = 16;
  static constexpr uint32_t kUnlimited = std::numeric_limits<uint32_t>::max();

  struct Item;
  using Sequence = std::vector<Item>;
  using Group = std::vector<Sequence>;
  struct Item {
    Regex::Kind kind = Regex::Kind::kSet;
    CharSet set;
    Group group;
    uint32_t min = 1, max = 1;
    bool possessive = false;
  };

  absl::Status Refuse(absl::string_view why) const {
    return absl::InvalidArgumentError(absl::StrCat("regular expression '", pattern_,
                                                   "' is not supported: ", why, " (at byte ",
                                                   position_, ")"));
  }

  bool Done() const { return position_ >= pattern_.size(); }
  bool Next(absl::string_view expected) {
    if (pattern_.substr(position_, expected.size()) != expected) return false;
    position_ += expected.size();
    return true;
  }
  char32_t Take() {
    size_t bytes;
    const char32_t code = DecodeUtf8(pattern_, position_, &bytes);
    position_ += bytes;
    return code;
  }

  // Up to a ')' that is left for the caller, or the end.
  absl::StatusOr<Group> ParseGroup(bool any_case, int depth) {
    if (depth > kMaxDepth) return Refuse("groups nest too deeply");
    Group group(1);
    while (!Done() && pattern_[position_] != ')') {
      if (Next("|")) {
        group.emplace_back();
        continue;
      }
      ASSIGN_OR_RETURN(Item item, ParseAtom(any_case, depth));
      RETURN_IF_ERROR(ParseRepeat(&item));
      group.back().push_back(std::move(item));
    }
    return group;
  }

  absl::StatusOr<Item> ParseAtom(bool any_case, int depth) {
    Item item;
    if (Next("(")) {
      item.kind = Regex::Kind::kBranch;
      if (Next("?:")) {
      } else if (Next("?i:")) {
        any_case = true;
      } else if (Next("?=")) {
        item.kind = Regex::Kind::kAhead;
      } else if (Next("?!")) {
        item.kind = Regex::Kind::kNotAhead;
      } else if (Next("?")) {
        return Refuse("this kind of group");
      }
      ASSIGN_OR_RETURN(item.group, ParseGroup(any_case, depth + 1));
      if (!Next(")")) return Refuse("'(' without ')'");
      return item;
    }
    if (Next("[")) {
      RETURN_IF_ERROR(ParseSet(&item.set));
    } else if (Next("\\")) {
      RETURN_IF_ERROR(ParseEscape(&item.set, nullptr));
    } else if (absl::string_view(".^$*+?{").find(pattern_[position_]) != absl::string_view::npos) {
      return Refuse(absl::StrCat("'", pattern_.substr(position_, 1), "' here"));
    } else {
      const char32_t code = Take();
      item.set.AddRange(code, code);
    }
    if (any_case) item.set.AddOtherCases();
    item.set.Finish();
    return item;
  }

  // After a backslash. *single is the code point of an escape that may bound a range.
  absl::Status ParseEscape(CharSet* set, char32_t* single) {
    if (Done()) return Refuse("it ends in a backslash");
    const char32_t code = Take();
    char32_t literal = code;
    switch (code) {
      case 'p':
      case 'P':
        return ParseProperty(code == 'P', set);
      case 's':
        for (char32_t c = 0; c <= 0x3000; ++c) {
          if (IsWhiteSpace(c)) set->AddRange(c, c);
        }
        return absl::OkStatus();
      case 'S':
        set->AddNonSpace();
        return absl::OkStatus();
      case 'd':
        set->AddCategories(CategoriesNamed("Nd"));
        return absl::OkStatus();
      case 'w':
        set->AddCategories(CategoriesNamed("L") | CategoriesNamed("M") | CategoriesNamed("Nd") |
                           CategoriesNamed("Pc"));
        return absl::OkStatus();
      case 'r':
        literal = '\r';
        break;
      case 'n':
        literal = '\n';
        break;
      case 't':
        literal = '\t';
        break;
      case 'f':
        literal = '\f';
        break;
      case 'v':
        literal = '\v';
        break;
      default:
        if (code < 128 && ((code >= '0' && code <= '9') || (code >= 'a' && code <= 'z') ||
                           (code >= 'A' && code <= 'Z'))) {
          return Refuse(absl::StrCat("\\", std::string(1, static_cast<char>(code))));
        }
    }
    if (single != nullptr) {
      *single = literal;
    } else {
      set->AddRange(literal, literal);
    }
    return absl::OkStatus();
  }

  absl::Status ParseProperty(bool negated, CharSet* set) {
    absl::string_view name;
    if (Next("{")) {
      if (Next("^")) negated = !negated;
      const size_t close = pattern_.find('}', position_);
      if (close == absl::string_view::npos) return Refuse("\\p{ without }");
      name = pattern_.substr(position_, close - position_);
      position_ = close + 1;
    }
    const CategoryMask mask = CategoriesNamed(name);
    if (mask == kNoCategories) return Refuse(absl::StrCat("property '", name, "'"));
    set->AddCategories(negated ? ~mask : mask);
    return absl::OkStatus();
  }

  absl::Status ParseSet(CharSet* set) {
    constexpr char32_t kNone = 0xFFFFFFFF;
    const bool negated = Next("^");
    for (bool first = true;; first = false) {
      if (Done()) return Refuse("'[' without ']'");
      if (!first && Next("]")) break;
      if (pattern_.substr(position_, 2) == "&&" || pattern_[position_] == '[' ||
          pattern_[position_] == ']') {
        return Refuse("this form of set");
      }
      char32_t low = kNone;
      if (Next("\\")) {
        RETURN_IF_ERROR(ParseEscape(set, &low));
        if (low == kNone) continue;
      } else {
        low = Take();
      }
      char32_t high = low;
      if (pattern_.substr(position_, 1) == "-" && pattern_.substr(position_, 2) != "-]") {
        ++position_;
        if (Done()) return Refuse("'[' without ']'");
        high = kNone;
        if (Next("\\")) {
          RETURN_IF_ERROR(ParseEscape(set, &high));
        } else {
          high = Take();
        }
        if (high == kNone || high < low) return Refuse("a range that is upside down");
      }
      set->AddRange(low, high);
    }
    if (negated) set->Negate();
    return absl::OkStatus();
  }

  absl::Status ParseRepeat(Item* item) {
    if (Next("?")) {
      item->min = 0;
    } else if (Next("*")) {
      item->min = 0;
      item->max = kUnlimited;
    } else if (Next("+")) {
      item->max = kUnlimited;
    } else if (Next("{")) {
      RETURN_IF_ERROR(ParseNumber(&item->min));
      item->max = item->min;
      if (Next(",")) {
        item->max = kUnlimited;
        if (pattern_.substr(position_, 1) != "}") RETURN_IF_ERROR(ParseNumber(&item->max));
      }
      if (!Next("}") || item->max < item->min) return Refuse("this repeat");
    } else {
      return absl::OkStatus();
    }
    // Oniguruma reads x{n,m}+ as a repeat of a repeat: refused, as is everything lazy.
    const bool braces = pattern_[position_ - 1] == '}';
    if (!braces && Next("+")) item->possessive = true;
    if (!Done() && absl::string_view("?*+{").find(pattern_[position_]) != absl::string_view::npos) {
      return Refuse("lazy or nested repeats");
    }
    if (item->kind == Regex::Kind::kSet) return absl::OkStatus();
    if (item->kind == Regex::Kind::kBranch && item->max == 1 && !item->possessive) {
      return absl::OkStatus();
    }
    return Refuse("a repeated group");
  }

  absl::Status ParseNumber(uint32_t* value) {
    *value = 0;
    const size_t begin = position_;
    while (!Done() && pattern_[position_] >= '0' && pattern_[position_] <= '9' && *value < 100000) {
      *value = *value * 10 + static_cast<uint32_t>(pattern_[position_++] - '0');
    }
    return position_ > begin && *value < 100000 ? absl::OkStatus() : Refuse("this repeat");
  }

  int32_t NewNode(Regex::Kind kind, int32_t next) {
    regex_.nodes_.emplace_back();
    regex_.nodes_.back().kind = kind;
    regex_.nodes_.back().next = next;
    return static_cast<int32_t>(regex_.nodes_.size() - 1);
  }

  int32_t Link(const Group& group, int32_t next) {
    std::vector<int32_t> branches;
    for (const Sequence& sequence : group) {
      int32_t head = next;
      for (auto item = sequence.rbegin(); item != sequence.rend(); ++item) {
        head = LinkItem(*item, head);
      }
      branches.push_back(head);
    }
    if (branches.size() == 1) return branches[0];
    const int32_t node = NewNode(Regex::Kind::kBranch, -1);
    regex_.nodes_[static_cast<size_t>(node)].branches = std::move(branches);
    return node;
  }

  int32_t LinkItem(const Item& item, int32_t next) {
    std::vector<int32_t> branches;
    if (item.kind == Regex::Kind::kBranch) {
      branches.push_back(Link(item.group, next));
      if (item.min == 0) branches.push_back(next);
    } else if (item.kind != Regex::Kind::kSet) {
      branches.push_back(Link(item.group, NewNode(Regex::Kind::kAccept, -1)));
    }
    const int32_t index = NewNode(item.kind, next);
    Regex::Node& node = regex_.nodes_[static_cast<size_t>(index)];
    node.branches = std::move(branches);
    node.set = item.set;
    node.min = item.min;
    node.max = item.max;
    node.possessive = item.possessive;
    return index;
  }

  absl::string_view pattern_;
  size_t position_ = 0;
  Regex regex_;
};

absl::StatusOr<Regex> Regex::Compile(absl::string_view pattern) {
  return RegexCompiler(pattern).Compile();
}

}  // namespace eventide
