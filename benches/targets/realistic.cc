// Replaces the thesis's realistic.cpp, for which the thesis gives only the name and a time of 14
// ms: a service that parses orders, plans a route for each order on a small map, keeps some orders
// in a cache, and writes a log. The answer to a line "COUNT" is the mean time of COUNT runs in
// nanoseconds.
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "measured.hpp"

using namespace measured;

namespace {

constexpr int places = 60, orders = 4800;

struct Order {
  std::string customer;
  std::vector<std::string> items;
  std::map<std::string, std::string> fields;
  int from = 0, to = 0;
};

struct Step {
  int place;
  std::shared_ptr<Step> before;
};

std::string received(Random& random) {
  std::string text = "customer=customer number " + std::to_string(random.next() % 5000);
  text += ";from=" + std::to_string(random.next() % places) + ";to=" + std::to_string(random.next() % places);
  for (uint64_t i = 0, n = random.next() % 8 + 1; i < n; i++)
    text += ";item=article with a long name " + std::to_string(random.next() % 1000);
  return text;
}

std::unique_ptr<Order> parsed(const std::string& text) {
  auto order = std::make_unique<Order>();
  for (size_t at = 0; at < text.size();) {
    size_t end = std::min(text.find(';', at), text.size());
    std::string field = text.substr(at, end - at), name = field.substr(0, field.find('='));
    std::string value = field.substr(name.size() + 1);
    if (name == "item")
      order->items.push_back(value);
    else
      order->fields.emplace(name, value);
    at = end + 1;
  }
  order->customer = order->fields["customer"];
  order->from = std::stoi(order->fields["from"]);
  order->to = std::stoi(order->fields["to"]);
  return order;
}

// Breadth-first search over a ring with chords.
std::optional<std::vector<int>> route(int from, int to) {
  std::deque<std::shared_ptr<Step>> open{std::make_shared<Step>(Step{from, nullptr})};
  std::vector<bool> seen(places);
  while (!open.empty()) {
    std::shared_ptr<Step> step = open.front();
    open.pop_front();
    if (step->place == to) {
      std::vector<int> all;
      for (; step; step = step->before) all.insert(all.begin(), step->place);
      return all;
    }
    for (int next : {step->place + 1, step->place + 7, step->place * 3}) {
      next %= places;
      if (seen[static_cast<size_t>(next)]) continue;
      seen[static_cast<size_t>(next)] = true;
      open.push_back(std::make_shared<Step>(Step{next, step}));
    }
  }
  return std::nullopt;
}

struct Service {
  std::unordered_map<std::string, std::unique_ptr<Order>> last;
  std::deque<std::string> log;

  void answer(const std::string& text) {
    std::unique_ptr<Order> order = parsed(text);
    std::optional<std::vector<int>> way = route(order->from, order->to);
    std::string line = order->customer + ": ";
    if (way)
      for (int place : *way) line += std::to_string(place) + " > ";
    log.push_back(line + std::to_string(order->items.size()) + " items");
    if (log.size() > 1000) log.pop_front();
    std::string customer = order->customer;
    last[customer] = std::move(order);
  }
};

}  // namespace

int main() {
  Random random{88172645463325252ull};
  Service service;
  auto work = [&] {
    for (int i = 0; i < orders; i++) service.answer(received(random));
  };
  bind_to_processor(0);
  for (int i = 0; i < 20; i++) work();
  say("ready\n");
  for (double runs; asked(&runs);) {
    double before = own_ns();
    for (int i = 0; i < static_cast<int>(runs); i++) work();
    say("%.0f\n", (own_ns() - before) / runs);
  }
}
