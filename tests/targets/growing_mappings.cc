// Mappings that grow without pause, in each of the three ways in which the kernel makes them longer: the heap by brk,
// the heap of an arena by mprotect, and memory that is mapped below what was mapped before.
#include <sys/mman.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

namespace {

constexpr std::size_t BLOCK = 40'000;
constexpr std::size_t PIECE = 64 << 10;
// So that an arena stays in one heap of 64 MiB.
constexpr std::size_t MOST = 1200;

std::atomic<bool> ends{false};

// Each block holds its own number.
void fill(unsigned char* block, std::size_t bytes, std::size_t number) {
  std::memset(block, static_cast<int>(number % 251) + 1, bytes);
}

bool holds(const unsigned char* block, std::size_t bytes, std::size_t number) {
  for (std::size_t i = 0; i < bytes; i++) {
    if (block[i] != number % 251 + 1) return false;
  }
  return true;
}

template <typename Make>
bool grow(std::size_t bytes, Make make) {
  std::vector<unsigned char*> blocks;
  blocks.reserve(MOST);
  while (!ends) {
    if (blocks.size() < MOST) {
      blocks.push_back(make());
      fill(blocks.back(), bytes, blocks.size());
    }
    timespec pause{0, 5'000'000};
    nanosleep(&pause, nullptr);
  }
  std::size_t number = 0;
  for (unsigned char* block : blocks) {
    if (!holds(block, bytes, ++number)) return false;
  }
  return true;
}

unsigned char* allocated() {
  void* block = std::malloc(BLOCK);
  if (block == nullptr) std::abort();
  return static_cast<unsigned char*>(block);
}

unsigned char* mapped() {
  void* piece = mmap(nullptr, PIECE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (piece == MAP_FAILED) std::abort();
  return static_cast<unsigned char*>(piece);
}

}  // namespace

int main() {
  bool of_arena = false, of_mappings = false, of_main = false;
  std::thread arena([&] { of_arena = grow(BLOCK, allocated); });
  std::thread mappings([&] { of_mappings = grow(PIECE, mapped); });
  std::thread input([] {
    while (std::getchar() != EOF) {
    }
    ends = true;
  });
  std::puts("ready");
  std::fflush(stdout);
  of_main = grow(BLOCK, allocated);
  arena.join();
  mappings.join();
  input.join();
  return of_arena && of_mappings && of_main ? 0 : 1;
}
