// What every flag is held against when it is parsed, so that a slip is bad usage and never another
// number: CLI11 alone takes "" for 0, "010" for 8, 2^64 for 2^64 - 1 and "nan" for any range.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace eventide {

// Help texts that end with their flag's default, where it has one: CLI11 puts it in the midst of its type.
std::shared_ptr<CLI::Formatter> DefaultsBehindTexts();

// Decimal digits only, without leading zeros; for each element of a list.
CLI::Validator WholeNumber(uint64_t low, uint64_t high);
// "7" or "1..256", both ends included; for each element of a list.
CLI::Validator WholeNumbers(uint64_t low, uint64_t high);
// What such elements name, in order and each once. They have been checked.
std::vector<int> ExpandRanges(const std::vector<std::string>& ranges);
// A finite decimal number.
CLI::Validator RealNumber(double low, double high);
// Of a KV block: a power of two that the decoder takes.
CLI::Validator BlockSize();
// For names of files and models.
CLI::Validator NotEmpty();

}  // namespace eventide
