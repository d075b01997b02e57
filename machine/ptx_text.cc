#include "machine/ptx_text.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <stdexcept>

namespace eventide::machine {
namespace {

[[noreturn]] void Fail(const std::string& what) { throw std::runtime_error("PTX: " + what); }

std::string Strip(const std::string& text) {
  size_t from = 0, to = text.size();
  while (from < to && std::isspace(static_cast<unsigned char>(text[from]))) ++from;
  while (to > from && std::isspace(static_cast<unsigned char>(text[to - 1]))) --to;
  return text.substr(from, to - from);
}

bool StartsWith(const std::string& text, const char* start) { return text.rfind(start, 0) == 0; }

std::vector<std::string> Words(const std::string& text) {
  std::vector<std::string> words;
  std::string word;
  for (const char c : text + " ") {
    if (!std::isspace(static_cast<unsigned char>(c))) {
      word += c;
    } else if (!word.empty()) {
      words.push_back(std::move(word));
      word.clear();
    }
  }
  return words;
}

// At commas outside of brackets.
std::vector<std::string> Operands(const std::string& text) {
  std::vector<std::string> operands;
  std::string operand;
  int depth = 0;
  for (const char c : text) {
    if (c == '[' || c == '{' || c == '(') ++depth;
    if (c == ']' || c == '}' || c == ')') --depth;
    if (c == ',' && depth == 0) {
      operands.push_back(Strip(operand));
      operand.clear();
    } else {
      operand += c;
    }
  }
  if (!Strip(operand).empty()) operands.push_back(Strip(operand));
  return operands;
}

int BytesOf(const std::string& type) {
  if (type == ".pred") return 0;
  const size_t digits = type.find_first_of("0123456789");
  if (digits == std::string::npos) Fail("type " + type);
  return std::stoi(type.substr(digits)) / 8;
}

// ".align 8 .b8 name[16]" and ".u64 name", and "= {...}" behind.
PtxVariable Variable(const std::string& text) {
  PtxVariable variable;
  const size_t equals = text.find('=');
  uint64_t count = 1;
  int element = 0;
  const std::vector<std::string> words = Words(text.substr(0, equals));
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (word == ".align") {
      variable.align = std::stoull(words.at(++i));
    } else if (word == ".ptr" || word == ".global" || word == ".const" || word == ".visible" || word == ".shared" ||
               word == ".local" || word == ".param" || word == ".extern") {
    } else if (word[0] == '.') {
      element = BytesOf(word);
    } else {
      const size_t bracket = word.find('[');
      variable.name = word.substr(0, bracket);
      if (bracket != std::string::npos) {
        const std::string digits = word.substr(bracket + 1);
        count = digits[0] == ']' ? 0 : std::stoull(digits);
      }
    }
  }
  variable.bytes = count * static_cast<uint64_t>(element);
  if (variable.align < static_cast<uint64_t>(element)) variable.align = static_cast<uint64_t>(element);
  if (equals != std::string::npos) {
    std::string values = text.substr(equals + 1);
    for (char& c : values) {
      if (c == '{' || c == '}' || c == ',') c = ' ';
    }
    for (const std::string& value : Words(values)) {
      // Addresses of other variables, as in tables of names, are of no use to a kernel of ours.
      const uint64_t bits = StartsWith(value, "generic(") ? 0 : std::stoull(value, nullptr, 0);
      variable.data.append(reinterpret_cast<const char*>(&bits), static_cast<size_t>(element));
    }
    variable.data.resize(variable.bytes);
  }
  return variable;
}

class Body {
 public:
  explicit Body(PtxKernel* kernel) : kernel_(*kernel) {}

  void Statement(const std::string& text, int line) {
    if (text.empty()) return;
    if (StartsWith(text, ".reg")) return Registers(text);
    if (StartsWith(text, ".shared")) return kernel_.shared.push_back(Variable(text));
    if (StartsWith(text, ".local")) return kernel_.local.push_back(Variable(text));
    if (StartsWith(text, ".branchtargets")) {
      kernel_.tables[label_] = Operands(Strip(text.substr(std::strlen(".branchtargets"))));
      return;
    }
    if (StartsWith(text, ".pragma") || StartsWith(text, ".loc")) return;
    if (text[0] == '.') Fail("directive " + text);
    PtxStatement statement;
    statement.line = line;
    statement.source = source_;
    std::string rest = text;
    if (rest[0] == '@') {
      const size_t end = rest.find_first_of(" \t\n");
      const bool inverted = rest[1] == '!';
      statement.guard_not = inverted;
      statement.guard = Scoped(rest.substr(inverted ? 2 : 1, end - (inverted ? 2 : 1)));
      rest = Strip(rest.substr(end));
    }
    const size_t end = rest.find_first_of(" \t\n");
    statement.opcode = rest.substr(0, end);
    if (end != std::string::npos) statement.operands = Operands(rest.substr(end));
    for (std::string& operand : statement.operands) operand = ScopedAll(operand);
    kernel_.code.push_back(std::move(statement));
  }
  void Label(const std::string& name) {
    label_ = name;
    if (kernel_.labels.count(name) != 0) Fail("label " + name + " stands twice: labels of scopes are not known");
    kernel_.labels[name] = static_cast<int>(kernel_.code.size());
  }
  void Source(int source) { source_ = source; }
  void Open() { scopes_.push_back(++opened_); }
  void Close() { scopes_.pop_back(); }

 private:
  void Registers(const std::string& text) {
    const std::vector<std::string> words = Words(text);
    const int bytes = BytesOf(words.at(1));
    std::string names;
    for (size_t i = 2; i < words.size(); ++i) names += words[i];
    for (const std::string& name : Operands(names)) {
      const size_t many = name.find('<');
      if (many == std::string::npos) {
        kernel_.registers[scopes_.empty() ? name : name + "@" + std::to_string(scopes_.back())] = bytes;
        continue;
      }
      if (!scopes_.empty()) Fail("numbered registers of a scope");
      const int count = std::stoi(name.substr(many + 1));
      for (int i = 0; i < count; ++i) kernel_.registers[name.substr(0, many) + std::to_string(i)] = bytes;
    }
  }
  // A name of inline assembly is its innermost scope's.
  std::string Scoped(const std::string& name) const {
    for (size_t i = scopes_.size(); i > 0; --i) {
      const std::string scoped = name + "@" + std::to_string(scopes_[i - 1]);
      if (kernel_.registers.count(scoped) != 0) return scoped;
    }
    return name;
  }
  std::string ScopedAll(const std::string& operand) const {
    if (scopes_.empty()) return operand;
    std::string result, name;
    for (const char c : operand + " ") {
      if (std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '$' || c == '%' || c == '.') {
        name += c;
        continue;
      }
      result += name.empty() ? "" : Scoped(name);
      name.clear();
      result += c;
    }
    result.pop_back();
    return result;
  }

  PtxKernel& kernel_;
  std::string label_;
  std::vector<int> scopes_;
  int opened_ = 0, source_ = -1;
};

class Parser {
 public:
  explicit Parser(const std::string& text) : text_(text) {}

  PtxModule Run() {
    while (Skip()) {
      const std::string head = Until(";{(");
      if (head.find(".entry") != std::string::npos) {
        Kernel(head);
      } else if (StartsWith(head, ".version") || StartsWith(head, ".target") || StartsWith(head, ".address_size")) {
        // One a line, without a semicolon: whatever was read beyond the line comes again.
        at_ = text_.find('\n', start_);
      } else if (StartsWith(head, ".file")) {
        at_ = start_;
        const std::string line = Line();
        const size_t open = line.find('"');
        module_.files[std::stoi(line.substr(5))] = line.substr(open + 1, line.find('"', open + 1) - open - 1);
      } else if (StartsWith(head, ".section")) {
        at_ = text_.find('}', at_) + 1;
      } else if (head.find(".shared") != std::string::npos) {
        End(head);
        module_.dynamic_shared = module_.dynamic_shared || head.find(".extern") != std::string::npos;
        module_.shared.push_back(Variable(head));
      } else if (head.find(".global") != std::string::npos || head.find(".const") != std::string::npos) {
        module_.globals.push_back(Variable(End(head)));
      } else {
        Fail("at module level: " + head);
      }
    }
    return std::move(module_);
  }

 private:
  // To the next thing that is not white or a comment.
  bool Skip() {
    for (;;) {
      while (at_ < text_.size() && (std::isspace(static_cast<unsigned char>(text_[at_])) || text_[at_] == '\0')) {
        line_ += text_[at_++] == '\n';
      }
      if (text_.compare(at_, 2, "//") != 0) break;
      at_ = text_.find('\n', at_);
      if (at_ == std::string::npos) at_ = text_.size();
    }
    start_ = at_;
    return at_ < text_.size();
  }
  // Up to one of `ends`, which stays.
  std::string Until(const char* ends) {
    std::string found;
    while (at_ < text_.size() && std::strchr(ends, text_[at_]) == nullptr) {
      if (text_.compare(at_, 2, "//") == 0) {
        while (at_ < text_.size() && text_[at_] != '\n') ++at_;
        continue;
      }
      line_ += text_[at_] == '\n';
      found += text_[at_++];
    }
    return Strip(found);
  }
  // The rest of a variable's declaration.
  std::string End(const std::string& head) {
    const std::string all = head + Until(";");
    ++at_;
    return all;
  }

  // The rest of the line.
  std::string Line() {
    const size_t end = std::min(text_.find('\n', at_), text_.size());
    const std::string line = text_.substr(at_, end - at_);
    at_ = end;
    return line;
  }
  // ".loc file line column, function_name ..., inlined_at file line column".
  int Location(const std::string& line) {
    PtxModule::Source source;
    const std::vector<std::string> words = Words(line);
    source.file = std::stoi(words.at(1));
    source.line = std::stoi(words.at(2));
    for (size_t i = 0; i + 2 < words.size(); ++i) {
      if (words[i] != "inlined_at") continue;
      PtxModule::Source call;
      call.file = std::stoi(words[i + 1]);
      call.line = std::stoi(words[i + 2]);
      // The call was inlined itself: what is known of its line says where.
      const auto known = last_of_.find({call.file, call.line});
      if (known != last_of_.end()) call.within = known->second;
      source.within = static_cast<int>(module_.sources.size());
      module_.sources.push_back(call);
    }
    const int index = static_cast<int>(module_.sources.size());
    last_of_[{source.file, source.line}] = source.within;
    module_.sources.push_back(source);
    return index;
  }

  void Kernel(const std::string& head) {
    PtxKernel kernel;
    kernel.name = Words(head).back();
    if (text_[at_] == '(') {
      ++at_;
      for (const std::string& param : Operands(Until(")"))) kernel.params.push_back(Variable(param));
      ++at_;
    }
    const std::vector<std::string> tuning = Words(Until("{"));
    for (size_t i = 0; i + 1 < tuning.size(); ++i) {
      if (tuning[i] == ".maxntid") kernel.max_threads = std::stoi(tuning[i + 1]);
    }
    ++at_;
    Body body(&kernel);
    for (int depth = 1; depth > 0;) {
      if (!Skip()) Fail("a kernel that does not end");
      const char c = text_[at_];
      if (c == '{' || c == '}') {
        ++at_;
        depth += c == '{' ? 1 : -1;
        if (c == '{') body.Open();
        if (c == '}' && depth > 0) body.Close();
        continue;
      }
      if (text_.compare(at_, 5, ".loc\t") == 0 || text_.compare(at_, 5, ".loc ") == 0) {
        body.Source(Location(Line()));
        continue;
      }
      const int line = line_ + 1;
      const size_t name = at_;
      while (std::isalnum(static_cast<unsigned char>(text_[at_])) || std::strchr("_$", text_[at_]) != nullptr) ++at_;
      if (at_ > name && text_[at_] == ':' && text_[at_ + 1] != ':') {
        body.Label(text_.substr(name, at_ - name));
        ++at_;
        continue;
      }
      at_ = name;
      body.Statement(Until(";"), line);
      ++at_;
    }
    module_.kernels.push_back(std::move(kernel));
  }

  const std::string& text_;
  size_t at_ = 0, start_ = 0;
  int line_ = 0;
  PtxModule module_;
  std::map<std::pair<int, int>, int> last_of_;  // file and line to where they were inlined last
};

}  // namespace

std::string PtxModule::Place(const PtxStatement& statement) const {
  std::string place = "PTX line " + std::to_string(statement.line);
  int depth = 0;
  for (int i = statement.source; i >= 0 && depth < 4; i = sources[static_cast<size_t>(i)].within, ++depth) {
    const Source& source = sources[static_cast<size_t>(i)];
    const auto file = files.find(source.file);
    place += (depth == 0 ? " (" : " in ") + (file == files.end() ? "?" : file->second) + ":" + std::to_string(source.line);
  }
  return place + (depth > 0 ? ")" : "");
}

PtxModule ParsePtx(const std::string& text) { return Parser(text).Run(); }

}  // namespace eventide::machine
