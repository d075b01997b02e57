#include "text/chat_template.h"

#include <algorithm>
#include <cctype>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/status.h"

namespace eventide {
namespace {

constexpr size_t kMaxTemplateBytes = size_t{1} << 20;

// The forms that may be printed on the way of one question, as Canonical writes them.
constexpr char kMessage[] = "'<|im_start|>'+message.role+'\n'+message.content+'<|im_end|>\n'";
constexpr char kMessageContent[] = "'<|im_start|>'+message.role+'\n'+content+'<|im_end|>\n'";
constexpr char kUser[] = "'<|im_start|>user\n'+message.content+'<|im_end|>\n'";
constexpr char kSystem[] = "'<|im_start|>system\n'+messages[0].content+'<|im_end|>\n'";
constexpr char kSystemMessage[] = "'<|im_start|>system\n'+message.content+'<|im_end|>\n'";
constexpr char kAnswer[] = "'<|im_start|>assistant\n'";
constexpr char kSystemBegin[] = "'<|im_start|>system\n", kSystemEnd[] = "<|im_end|>\n'";

struct Token {
  enum Kind { kLiteral, kWord, kMark } kind;
  std::string text;
};

// A piece between {{ }} or {% %}.
struct Block {
  bool prints = false;
  std::vector<Token> tokens;
  std::string canonical;
};

absl::Status Unknown(absl::string_view what) {
  return absl::UnimplementedError(absl::StrCat(
      "the checkpoint's chat template is not of the ChatML kind that Eventide knows (at '",
      what.substr(0, 80), "'): give the whole prompt, markers included, without --chat"));
}

bool IsWordCharacter(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) || c == '_';
}

// A literal in quotes at `at`, which moves behind it.
absl::StatusOr<std::string> TakeLiteral(absl::string_view code, size_t* at) {
  const char quote = code[*at];
  std::string text;
  for (size_t i = *at + 1; i < code.size(); ++i) {
    if (code[i] == quote) {
      *at = i + 1;
      return text;
    }
    if (code[i] == '\\' && i + 1 < code.size()) {
      ++i;
      text += code[i] == 'n' ? '\n' : code[i] == 't' ? '\t' : code[i];
    } else {
      text += code[i];
    }
  }
  return Unknown(code.substr(*at));
}

absl::StatusOr<std::vector<Token>> Tokens(absl::string_view code) {
  std::vector<Token> tokens;
  for (size_t i = 0; i < code.size();) {
    if (absl::ascii_isspace(static_cast<unsigned char>(code[i]))) {
      ++i;
    } else if (code[i] == '\'' || code[i] == '"') {
      ASSIGN_OR_RETURN(std::string text, TakeLiteral(code, &i));
      tokens.push_back({Token::kLiteral, std::move(text)});
    } else if (IsWordCharacter(code[i])) {
      const size_t begin = i;
      while (i < code.size() && IsWordCharacter(code[i])) ++i;
      tokens.push_back({Token::kWord, std::string(code.substr(begin, i - begin))});
    } else {
      tokens.push_back({Token::kMark, std::string(1, code[i++])});
    }
  }
  return tokens;
}

bool IsMark(const std::vector<Token>& tokens, size_t i, char mark) {
  return i < tokens.size() && tokens[i].kind == Token::kMark && tokens[i].text[0] == mark;
}

// One spelling for what means the same: x['y'] is x.y, literals that are joined are one.
std::string Canonical(const std::vector<Token>& tokens) {
  std::vector<Token> out;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (IsMark(tokens, i, '[') && i + 2 < tokens.size() && IsMark(tokens, i + 2, ']') &&
        tokens[i + 1].kind == Token::kLiteral) {
      out.push_back({Token::kMark, "."});
      out.push_back({Token::kWord, tokens[i + 1].text});
      i += 2;
    } else if (tokens[i].kind == Token::kLiteral && out.size() >= 2 &&
               (IsMark(out, out.size() - 1, '+') || IsMark(out, out.size() - 1, '~')) &&
               out[out.size() - 2].kind == Token::kLiteral) {
      out.pop_back();
      out.back().text += tokens[i].text;
    } else {
      out.push_back(tokens[i]);
    }
  }
  std::string text;
  for (size_t i = 0; i < out.size(); ++i) {
    const bool words = i > 0 && out[i].kind == Token::kWord && out[i - 1].kind == Token::kWord;
    if (words) text += ' ';
    text += out[i].kind == Token::kLiteral ? "'" + out[i].text + "'"
            : out[i].text == "~"           ? "+"
                                           : out[i].text;
  }
  return text;
}

// Cuts the program. Text between blocks must be blank and vanish, as it does for Hugging Face (a
// dash strips blanks; the first line's end behind {% %}, and blanks in a line before it, go too).
class Cutter {
 public:
  explicit Cutter(absl::string_view jinja) : rest_(jinja) {}

  absl::StatusOr<std::vector<Block>> Cut() {
    std::vector<Block> blocks;
    for (;;) {
      const size_t open = rest_.find('{');
      const bool any = open != absl::string_view::npos && open + 1 < rest_.size();
      const char kind = any ? rest_[open + 1] : '\0';
      if (!any || (kind != '{' && kind != '%' && kind != '#')) {
        if (!absl::StripAsciiWhitespace(rest_).empty()) return Unknown(rest_);
        return blocks;
      }
      const char end[] = {kind == '{' ? '}' : kind, '}', '\0'};
      const size_t close = FindEnd(open + 2, end, kind == '#');
      if (close == absl::string_view::npos) return Unknown(rest_);
      absl::string_view code = rest_.substr(open + 2, close - open - 2);
      const bool strips = absl::ConsumePrefix(&code, "-") || absl::ConsumePrefix(&code, "+");
      RETURN_IF_ERROR(CheckText(rest_.substr(0, open), strips, kind != '{'));
      strip_next_ = absl::ConsumeSuffix(&code, "-");
      trim_next_ = kind != '{';
      rest_.remove_prefix(close + 2);
      if (kind == '#') continue;
      Block block;
      block.prints = kind == '{';
      ASSIGN_OR_RETURN(block.tokens, Tokens(code));
      block.canonical = Canonical(block.tokens);
      blocks.push_back(std::move(block));
    }
  }

 private:
  // `end` outside of literals.
  size_t FindEnd(size_t from, absl::string_view end, bool comment) const {
    char quote = '\0';
    for (size_t i = from; i + 1 < rest_.size(); ++i) {
      const char c = rest_[i];
      if (quote != '\0') {
        if (c == '\\') ++i;
        if (c == quote) quote = '\0';
      } else if (!comment && (c == '\'' || c == '"')) {
        quote = c;
      } else if (rest_.substr(i, 2) == end) {
        return i;
      }
    }
    return absl::string_view::npos;
  }

  absl::Status CheckText(absl::string_view text, bool strips, bool statement) const {
    if (!absl::StripAsciiWhitespace(text).empty()) return Unknown(text);
    if (strips || strip_next_) return absl::OkStatus();
    if (trim_next_) absl::ConsumePrefix(&text, "\n");
    if (statement && text.find('\n') == absl::string_view::npos) return absl::OkStatus();
    return text.empty() ? absl::OkStatus() : Unknown("blanks between two parts");
  }

  absl::string_view rest_;
  bool strip_next_ = false, trim_next_ = false;  // as the block before wants it
};

bool Has(const Block& block, Token::Kind kind, absl::string_view text) {
  return std::any_of(block.tokens.begin(), block.tokens.end(),
                     [&](const Token& t) { return t.kind == kind && t.text == text; });
}

// Whether one question, without tools and switches, never makes the condition true.
bool NeverForQuestion(const Block& condition) {
  if (Has(condition, Token::kLiteral, "user")) return false;
  for (const char* word : {"tools", "tool", "tool_calls", "enable_thinking"}) {
    if (Has(condition, Token::kWord, word) && !Has(condition, Token::kWord, "not")) return true;
  }
  return (Has(condition, Token::kLiteral, "assistant") ||
          Has(condition, Token::kLiteral, "tool")) &&
         !Has(condition, Token::kMark, "!") && !Has(condition, Token::kWord, "not");
}

// Follows the program and keeps what is printed where one question gets.
class Follower {
 public:
  absl::Status Take(const Block& block) {
    const std::string word = block.tokens.empty() ? "" : block.tokens[0].text;
    if (block.prints) return OnWay() ? Print(block) : absl::OkStatus();
    if (word == "if" || word == "for") {
      if (word == "for" && OnWay() && block.canonical == "for message in messages") loops_ = true;
      never_.push_back(NeverForQuestion(block));
    } else if (word == "elif" || word == "else") {
      if (never_.empty()) return Unknown(block.canonical);
      never_.back() = word == "elif" && NeverForQuestion(block);
    } else if (word == "endif" || word == "endfor") {
      if (never_.empty()) return Unknown(block.canonical);
      never_.pop_back();
    } else if (word == "set") {
      return OnWay() ? Set(block) : absl::OkStatus();
    } else {
      return Unknown(block.canonical);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::optional<std::string>> Finish() const {
    if (!loops_ || !messages_ || !answer_) return Unknown("no ChatML turns");
    return default_system_;
  }

 private:
  bool OnWay() const { return std::find(never_.begin(), never_.end(), true) == never_.end(); }

  absl::Status Print(const Block& block) {
    absl::string_view text = block.canonical;
    if (text == kMessage || text == kUser || (text == kMessageContent && content_)) {
      messages_ = true;
    } else if (text == kAnswer) {
      answer_ = true;
    } else if (text == kSystem || text == kSystemMessage) {
      return absl::OkStatus();
    } else if (block.tokens.size() == 1 && absl::ConsumePrefix(&text, kSystemBegin) &&
               absl::ConsumeSuffix(&text, kSystemEnd) && !default_system_ &&
               text.find("<|") == absl::string_view::npos) {
      default_system_ = std::string(text);
    } else {
      return Unknown(block.canonical);
    }
    return absl::OkStatus();
  }

  // What the question's text passes through must not change it.
  absl::Status Set(const Block& block) {
    if (block.canonical == "set content=message.content") {
      content_ = true;
    } else if (block.tokens.size() < 2 ||
               (block.tokens[1].text == "content" && block.canonical != "set content=''") ||
               block.tokens[1].text == "message" || block.tokens[1].text == "messages") {
      return Unknown(block.canonical);
    }
    return absl::OkStatus();
  }

  std::vector<bool> never_;  // of each block around
  bool loops_ = false, messages_ = false, answer_ = false, content_ = false;
  std::optional<std::string> default_system_;
};

std::string Turn(absl::string_view role, absl::string_view text) {
  return absl::StrCat("<|im_start|>", role, "\n", text, kChatTurnEnd, "\n");
}

}  // namespace

absl::StatusOr<ChatTemplate> ChatTemplate::Parse(absl::string_view jinja) {
  if (jinja.size() > kMaxTemplateBytes) return Unknown("its length");
  ASSIGN_OR_RETURN(const std::vector<Block> blocks, Cutter(jinja).Cut());
  Follower follower;
  for (const Block& block : blocks) RETURN_IF_ERROR(follower.Take(block));
  ChatTemplate result;
  ASSIGN_OR_RETURN(result.default_system_, follower.Finish());
  return result;
}

std::string ChatTemplate::Ask(absl::string_view question,
                              const std::optional<std::string>& system) const {
  const std::optional<std::string>& said = system ? system : default_system_;
  return absl::StrCat(said ? Turn("system", *said) : "", Turn("user", question),
                      "<|im_start|>assistant\n");
}

}  // namespace eventide
