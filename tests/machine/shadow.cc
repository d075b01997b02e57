#include "tests/machine/shadow.h"

#include "absl/strings/str_format.h"

namespace eventide::machine {

Shadow::Word& Shadow::At(uint64_t word) {
  const uint64_t page = word / kPageWords;
  if (page != last_page_) {
    std::unique_ptr<Word[]>& words = pages_[page];
    if (words == nullptr) words = std::make_unique<Word[]>(kPageWords);
    last_page_ = page;
    last_ = words.get();
  }
  return last_[word % kPageWords];
}

std::string Shadow::Read(uint64_t address, uint32_t bytes, uint32_t agent, const Clock& clock, int line) {
  for (uint64_t at = address / kWordBytes; at <= (address + bytes - 1) / kWordBytes; ++at) {
    Word& word = At(at);
    if (word.written > clock[word.writer]) {
      return absl::StrFormat("a race: line %d, agent %d, reads what line %d, agent %d, has written", line, agent,
                             word.write_line, word.writer);
    }
    const uint32_t now = clock[agent];
    word.read_line = line;
    if (word.readers != nullptr) {
      (*word.readers)[agent] = now;
    } else if (word.reader == agent || word.read <= clock[word.reader]) {
      word.reader = agent;
      word.read = now;
    } else {
      word.readers = std::make_unique<Clock>(clock.size());
      (*word.readers)[word.reader] = word.read;
      (*word.readers)[agent] = now;
    }
  }
  return "";
}

std::string Shadow::Write(uint64_t address, uint32_t bytes, uint32_t agent, const Clock& clock, int line) {
  for (uint64_t at = address / kWordBytes; at <= (address + bytes - 1) / kWordBytes; ++at) {
    Word& word = At(at);
    if (word.written > clock[word.writer]) {
      return absl::StrFormat("a race: line %d, agent %d, writes over what line %d, agent %d, has written", line, agent,
                             word.write_line, word.writer);
    }
    uint32_t reader = word.reader;
    bool races = word.read > clock[word.reader];
    if (word.readers != nullptr) {
      races = false;
      for (uint32_t i = 0; i < clock.size() && !races; ++i) {
        races = (*word.readers)[i] > clock[i];
        reader = i;
      }
    }
    if (races) {
      return absl::StrFormat("a race: line %d, agent %d, writes over what line %d, agent %d, may still read", line,
                             agent, word.read_line, reader);
    }
    word.writer = agent;
    word.written = clock[agent];
    word.write_line = line;
    word.reader = word.read = 0;
    word.readers = nullptr;
  }
  return "";
}

}  // namespace eventide::machine
