// leveldb's fillseq: writes values of 100 bytes under ascending keys of 16 bytes into a new
// database in the directory given by the second argument. The first argument is the number of
// values. Prints the milliseconds of the writing thread without waits for a processor, and the peak
// resident memory in KiB.
#include <leveldb/db.h>

#include <sys/resource.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "measured.hpp"

int main(int, char** arguments) {
  int values = atoi(arguments[1]);
  leveldb::Options options;
  options.create_if_missing = true;
  options.error_if_exists = true;
  leveldb::DB* db = nullptr;
  if (!leveldb::DB::Open(options, arguments[2], &db).ok()) return 3;
  std::string value(100, 'v');
  double begin = measured::own_ns();
  for (int i = 0; i < values; i++) {
    char key[32];
    snprintf(key, sizeof key, "%016d", i);
    for (size_t at = 0; at < value.size(); at += 8) value[at] = static_cast<char>(i * 31 + at);
    if (!db->Put(leveldb::WriteOptions(), key, value).ok()) return 4;
  }
  double took = (measured::own_ns() - begin) / 1e6;
  delete db;
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  printf("%.1f %ld\n", took, usage.ru_maxrss);
}
