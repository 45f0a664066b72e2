// Reads a message with 1000 numbers and five parts of 1000 numbers each. The first argument is the
// number of repetitions. Each repetition creates a new message; with "arena", in an arena. Prints
// the milliseconds without waits for a processor, and the peak resident memory in KiB.
#include <sys/resource.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "measured.hpp"
#include "record.pb.h"

static std::string written() {
  Record record;
  record.set_name("a record whose name is too long to be kept within a string object");
  for (int i = 0; i < 1000; i++) record.add_numbers(i);
  for (int part = 0; part < 5; part++) {
    Part* added = record.add_parts();
    for (int i = 0; i < 1000; i++) added->add_numbers(i + part);
  }
  return record.SerializeAsString();
}

static long sum_of(const Record& record) {
  long sum = static_cast<long>(record.name().size());
  for (int number : record.numbers()) sum += number;
  for (const Part& part : record.parts())
    for (int number : part.numbers()) sum += number;
  return sum;
}

int main(int count, char** arguments) {
  int times = atoi(arguments[1]);
  bool in_arena = count > 2 && strcmp(arguments[2], "arena") == 0;
  std::string bytes = written();
  long sum = 0;
  double begin = measured::own_ns();
  for (int i = 0; i < times; i++) {
    if (in_arena) {
      google::protobuf::Arena arena;
      Record* record = google::protobuf::Arena::CreateMessage<Record>(&arena);
      if (!record->ParseFromString(bytes)) return 3;
      sum += sum_of(*record);
    } else {
      Record* record = new Record;
      if (!record->ParseFromString(bytes)) return 3;
      sum += sum_of(*record);
      delete record;
    }
  }
  double took = (measured::own_ns() - begin) / 1e6;
  if (sum == 0) return 4;
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  printf("%.1f %ld\n", took, usage.ru_maxrss);
}
