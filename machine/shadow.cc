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
    const uint8_t mine = BytesOf(at, address, bytes);
    if (word.written > clock[word.writer] && (mine & word.written_bytes) != 0) {
      return {"reads what was written by", word.writer, word.wrote_at};
    }
    const uint32_t now = clock[agent];
    if (word.readers == nullptr && (word.reader == agent || word.read <= clock[word.reader])) {
      word.read_bytes = static_cast<uint8_t>(word.reader == agent && word.read == now ? word.read_bytes | mine : mine);
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
    word.read_bytes |= mine;
    word.readers->epochs[agent] = now;
    word.readers->at[agent] = where;
  }
  return {};
}

bool Shadow::Races(uint64_t address, uint32_t bytes, const Clock& clock) {
  for (uint64_t at = address / kWordBytes; at <= (address + bytes - 1) / kWordBytes; ++at) {
    const Word& word = At(at);
    if (word.written > clock[word.writer] && (BytesOf(at, address, bytes) & word.written_bytes) != 0) return true;
  }
  return false;
}

Race Shadow::Write(uint64_t address, uint32_t bytes, uint32_t agent, const Clock& clock, const void* where) {
  for (uint64_t at = address / kWordBytes; at <= (address + bytes - 1) / kWordBytes; ++at) {
    Word& word = At(at);
    const uint8_t mine = BytesOf(at, address, bytes);
    if (word.written > clock[word.writer] && (mine & word.written_bytes) != 0) {
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
    if (races && (mine & word.read_bytes) != 0) {
      return {"writes over what may still be read by", reader, word.read_at};
    }
    const bool more = word.writer == agent && word.written == clock[agent];
    word.written_bytes = static_cast<uint8_t>(more ? word.written_bytes | mine : mine);
    word.writer = agent;
    word.written = clock[agent];
    word.wrote_at = where;
    word.reader = word.read = 0;
    word.read_bytes = 0;
    word.readers = nullptr;
  }
  return {};
}

}  // namespace eventide::machine
