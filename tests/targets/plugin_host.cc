// Opens and closes libraries without pause, while threads allocate and throw, until its input ends.
// Arguments: the number of threads that open libraries (0: the main thread opens them), and the
// names of the libraries.
#include <dlfcn.h>

#include <atomic>
#include <stdexcept>
#include <thread>
#include <vector>

#include "target.hpp"

using namespace target;

static std::atomic<bool> stop{false};
static std::atomic<long> opened{0};

static void open_and_close(int count, char** names, int first) {
  for (int i = first; !stop; i++) {
    void* library = dlopen(names[i % count], i % 2 ? RTLD_NOW : RTLD_LAZY);
    CHECK(library != nullptr);
    keep(malloc(1));
    CHECK(dlclose(library) == 0);
    opened++;
  }
}

static void hammer() {
  while (!stop) {
    for (int i = 0; i < 1000; i++) {
      auto* block = static_cast<unsigned char*>(malloc(static_cast<size_t>(i % 500 + 1)));
      block[0] = 1;
      keep(block);
      free(block);
    }
    // The unwinder asks the loader for the location of code.
    try {
      throw std::runtime_error("on purpose");
    } catch (const std::exception& e) {
      CHECK(strcmp(e.what(), "on purpose") == 0);
    }
    usleep(500);
  }
}

int main(int count, char** arguments) {
  CHECK(count > 2);
  int openers = atoi(arguments[1]);
  char** names = arguments + 2;
  std::vector<std::thread> threads;
  threads.emplace_back(hammer);
  threads.emplace_back([] {
    wait_for_byte();
    stop = true;
  });
  for (int i = 0; i < openers; i++)
    threads.emplace_back([=] { open_and_close(count - 2, names, i); });
  say("ready");
  if (openers == 0) open_and_close(count - 2, names, 0);
  for (auto& thread : threads) thread.join();
  fprintf(stderr, "%ld libraries opened\n", opened.load());
  CHECK(opened > 0);
}
