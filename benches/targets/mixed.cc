// The heap use of ordinary C++: strings, growing vectors, hash maps and trees, shared pointers,
// virtual objects, closures, exceptions, streams. One operation is a batch of all of these.
#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <sstream>
#include <stdexcept>
#include <string>
#include <unordered_map>

#include "measured.hpp"

using namespace measured;

namespace {

struct Shape {
  virtual ~Shape() = default;
  virtual double area() const = 0;
};
struct Square final : Shape {
  double side;
  explicit Square(double side) : side(side) {}
  double area() const override { return side * side; }
};
struct Polygon final : Shape {
  std::vector<std::pair<double, double>> corners;
  explicit Polygon(size_t count) {
    for (size_t i = 0; i < count; i++) corners.emplace_back(double(i), double(i * i));
  }
  double area() const override {
    double sum = 0;
    for (size_t i = 0; i < corners.size(); i++) {
      const auto& a = corners[i];
      const auto& b = corners[(i + 1) % corners.size()];
      sum += a.first * b.second - a.second * b.first;
    }
    return sum / 2;
  }
};

struct Node {
  std::string name;
  std::vector<std::shared_ptr<Node>> children;
  std::weak_ptr<Node> parent;
};

std::shared_ptr<Node> tree(Random& random, int depth) {
  auto node = std::make_shared<Node>();
  node->name = "node number " + std::to_string(random.next() % 100000);
  if (depth > 0) {
    for (uint64_t i = random.next() % 4 + 1; i > 0; i--) {
      node->children.push_back(tree(random, depth - 1));
      node->children.back()->parent = node;
    }
  }
  return node;
}

size_t weigh(const Node& node) {
  return std::accumulate(node.children.begin(), node.children.end(), node.name.size(),
                         [](size_t sum, const auto& child) { return sum + weigh(*child); });
}

size_t words(Random& random) {
  std::ostringstream text;
  for (int i = 0; i < 2000; i++) text << "word" << random.next() % 500 << (i % 12 ? ' ' : '\n');
  std::istringstream lines(text.str());
  std::unordered_map<std::string, std::vector<size_t>> places;
  std::string line;
  for (size_t number = 0; std::getline(lines, line); number++) {
    std::istringstream in(line);
    for (std::string word; in >> word;) places[word].push_back(number);
  }
  std::map<size_t, std::string> by_count;
  for (auto& [word, where] : places) by_count[where.size()] += word + ",";
  return by_count.size();
}

double shapes(Random& random) {
  std::vector<std::unique_ptr<Shape>> all;
  for (int i = 0; i < 1500; i++) {
    if (random.next() & 1)
      all.push_back(std::make_unique<Square>(double(random.next() % 10)));
    else
      all.push_back(std::make_unique<Polygon>(random.next() % 30 + 3));
  }
  std::sort(all.begin(), all.end(),
            [](const auto& a, const auto& b) { return a->area() < b->area(); });
  return all.front()->area();
}

int errors(Random& random) {
  int caught = 0;
  for (int i = 0; i < 100; i++) {
    try {
      if (random.next() % 4) throw std::runtime_error("request " + std::to_string(i) + " failed");
    } catch (const std::exception& error) {
      caught += error.what()[0] == 'r';
    }
  }
  return caught;
}

// Values that live for many batches, as in a server.
void cache(Random& random, std::unordered_map<uint64_t, std::string>& kept) {
  std::vector<std::function<void()>> jobs;
  for (int i = 0; i < 3000; i++) {
    uint64_t key = random.next() % 20000, length = random.next() % 400;
    jobs.push_back([&kept, key, length, i] {
      if (i % 3)
        kept[key] = std::string(length, 'v');
      else
        kept.erase(key);
    });
  }
  for (auto& job : jobs) job();
}

}  // namespace

int main() {
  Random random{88172645463325252ull};
  std::unordered_map<uint64_t, std::string> kept;
  double sum = 0;
  for (int i = 0; i < 20; i++) cache(random, kept);
  return serve(1, [&](int, double milliseconds) {
    return repeat(milliseconds, 1, [&] {
      sum += double(weigh(*tree(random, 6))) + double(words(random)) + shapes(random) + errors(random);
      cache(random, kept);
      keep(&sum);
    });
  });
}
