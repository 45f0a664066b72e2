// Live blocks of known types, with a function for each way to infer a type.
#include <list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "target.hpp"

using namespace target;

namespace shapes {
struct Point {
  long x[5];
};
struct Base {
  [[gnu::noinline]] explicit Base(int n) : name(n) { keep(this); }
  virtual ~Base() = default;
  long name;
};
struct Circle : Base {
  [[gnu::noinline]] explicit Circle(int n) : Base(n) { keep(this); }
  double radius = 1;
};
}  // namespace shapes
using namespace shapes;

struct Argument {
  [[gnu::noinline]] Argument() { keep(this); }
};
[[gnu::noinline]] static int number(const Argument& of) {
  keep(const_cast<Argument*>(&of));
  return 7;
}

#ifndef CIRCLES
#define CIRCLES 100
#endif
// Allocates blocks of 24 bytes. The argument of the constructor also has a constructor.
[[gnu::noinline]] static void constructed() {
  for (int i = 0; i < CIRCLES; i++) keep(new Circle(number(Argument())));
}
// A block of 40 * 64 bytes.
[[gnu::noinline]] static void grown() {
  auto* points = new std::vector<Point>();
  points->reserve(64);
  keep(points);
}
// 50 blocks of 56 bytes.
[[gnu::noinline]] static void listed() {
  auto* points = new std::list<Point>();
  for (int i = 0; i < 50; i++) points->push_back(Point{});
  keep(points);
}
// 10 blocks of 80 bytes.
[[gnu::noinline]] static void mapped() {
  auto* points = new std::map<int, Point>();
  for (int i = 0; i < 10; i++) (*points)[i].x[0] = i;
  keep(points);
}
// 5 blocks without an inferable type.
[[gnu::noinline]] static void raw() {
  for (int i = 0; i < 5; i++) keep(malloc(1000));
}

int main() {
  ready();
  constructed();
  grown();
  listed();
  mapped();
  raw();
  done();
}
