// Endless work through templates, closures, virtual calls and exceptions, for stacks of all shapes.
#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <regex>
#include <stdexcept>
#include <string>
#include <variant>
#include <vector>

namespace {

using Value = std::variant<int, std::string, std::vector<std::string>>;

struct Visitor {
  std::string operator()(int i) const { return std::to_string(i) + " is a number"; }
  std::string operator()(const std::string& s) const { return s + s; }
  std::string operator()(const std::vector<std::string>& v) const {
    std::string all;
    for (const auto& s : v) all += s + ", ";
    return all;
  }
};

struct Task {
  virtual ~Task() = default;
  virtual std::string run(int depth) = 0;
};

template <int Kind>
struct TaskOf final : Task {
  std::map<std::string, Value> values;
  std::string run(int depth) override {
    if (depth == 0) {
      if (values.size() > 20) throw std::length_error("task " + std::to_string(Kind) + " is full");
      values[std::to_string(values.size() * Kind)] = std::vector<std::string>(Kind, "element");
      return std::visit(Visitor{}, values.begin()->second);
    }
    std::function<std::string()> next = [this, depth] { return run(depth - 1); };
    return next() + std::to_string(depth);
  }
};

template <int... Kinds>
std::vector<std::unique_ptr<Task>> tasks(std::integer_sequence<int, Kinds...>) {
  std::vector<std::unique_ptr<Task>> all;
  (all.push_back(std::make_unique<TaskOf<Kinds + 1>>()), ...);
  return all;
}

}  // namespace

int main() {
  size_t sum = 0;
  for (unsigned round = 0;; round++) {
    auto all = tasks(std::make_integer_sequence<int, 8>());
    for (int i = 0; i < 30; i++) {
      for (auto& task : all) {
        try {
          sum += task->run(static_cast<int>(round % 12)).size();
        } catch (const std::length_error& error) {
          sum += std::string(error.what()).size();
        }
      }
    }
    std::sort(all.begin(), all.end(),
              [](const auto& a, const auto& b) { return a.get() < b.get(); });
    sum += std::regex_match("a" + std::to_string(round) + "bb", std::regex("a[0-9]+(b|c)*"));
    if (sum == 42) return 1;
  }
}
