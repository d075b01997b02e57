#include "machine/shadow.h"

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

Race Shadow::Read(uint64_t address, uint32_t bytes, uint32_t agent, const Clock& clock, const void* where) {
  for (uint64_t at = address / kWordBytes; at <= (address + bytes - 1) / kWordBytes; ++at) {
    Word& word = At(at);
    if (word.written > clock[word.writer]) {
      return {"reads what was written by", word.writer, word.wrote_at};
    }
    const uint32_t now = clock[agent];
    if (word.readers == nullptr && (word.reader == agent || word.read <= clock[word.reader])) {
      word.reader = agent;
      word.read = now;
      word.read_at = where;
      continue;
    }
    if (word.readers == nullptr) {
      word.readers = std::make_unique<Word::Readers>();
      word.readers->epochs.resize(clock.size());
      word.readers->at.resize(clock.size());
      word.readers->epochs[word.reader] = word.read;
      word.readers->at[word.reader] = word.read_at;
    }
    word.readers->epochs[agent] = now;
    word.readers->at[agent] = where;
  }
  return {};
}

bool Shadow::Races(uint64_t address, uint32_t bytes, const Clock& clock) {
  for (uint64_t at = address / kWordBytes; at <= (address + bytes - 1) / kWordBytes; ++at) {
    const Word& word = At(at);
    if (word.written > clock[word.writer]) return true;
  }
  return false;
}

Race Shadow::Write(uint64_t address, uint32_t bytes, uint32_t agent, const Clock& clock, const void* where) {
  for (uint64_t at = address / kWordBytes; at <= (address + bytes - 1) / kWordBytes; ++at) {
    Word& word = At(at);
    if (word.written > clock[word.writer]) {
      return {"writes over what was written by", word.writer, word.wrote_at};
    }
    uint32_t reader = word.reader;
    bool races = word.read > clock[word.reader];
    if (word.readers != nullptr) {
      races = false;
      for (uint32_t i = 0; i < clock.size() && !races; ++i) {
        races = word.readers->epochs[i] > clock[i];
        reader = i;
      }
      word.read_at = word.readers->at[reader];
    }
    if (races) {
      return {"writes over what may still be read by", reader, word.read_at};
    }
    word.writer = agent;
    word.written = clock[agent];
    word.wrote_at = where;
    word.reader = word.read = 0;
    word.readers = nullptr;
  }
  return {};
}

}  // namespace eventide::machine
