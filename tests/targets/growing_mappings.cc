// Mappings that keep growing in every way that the kernel supports: the heap by
// brk, the heap of an arena by mprotect, and the program's own mappings by
// mremap, which refuses a range that was split into several mappings. Some of
// these mappings move thousands of times a second, because another mapping
// follows them.
#include <sys/mman.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <latch>
#include <thread>
#include <utility>
#include <vector>

namespace {

constexpr std::size_t BLOCK = 40'000;
constexpr std::size_t PIECE = 64 << 10;
// Keeps an arena within one heap of 64 MiB.
constexpr std::size_t MOST = 1200;

std::atomic<bool> ends{false};
// Threads whose first mapping does not exist yet.
std::latch beginning{5};

// Mappings must never be refused.
unsigned char *existing(void *mapping) {
  if (mapping == MAP_FAILED) {
    std::perror("a mapping");
    std::abort();
  }
  return static_cast<unsigned char *>(mapping);
}

unsigned char *mapped(std::size_t bytes) {
  return existing(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
}

unsigned char *remapped(unsigned char *from, std::size_t bytes, std::size_t more) {
  return existing(mremap(from, bytes, more, MREMAP_MAYMOVE));
}

// Each block contains its own number.
void fill(unsigned char *block, std::size_t bytes, std::size_t number) {
  std::memset(block, static_cast<int>(number % 251) + 1, bytes);
}

bool holds(const unsigned char *block, std::size_t bytes, std::size_t number) {
  for (std::size_t i = 0; i < bytes; i++) {
    if (block[i] != number % 251 + 1) return false;
  }
  return true;
}

unsigned char *allocated() {
  void *block = std::malloc(BLOCK);
  if (block == nullptr) std::abort();
  return static_cast<unsigned char *>(block);
}

bool grow() {
  std::vector<unsigned char *> blocks;
  blocks.reserve(MOST);
  while (!ends) {
    if (blocks.size() < MOST) {
      blocks.push_back(allocated());
      fill(blocks.back(), BLOCK, blocks.size());
    }
    timespec pause{0, 5'000'000};
    nanosleep(&pause, nullptr);
  }
  std::size_t number = 0;
  for (unsigned char *block : blocks) {
    if (!holds(block, BLOCK, ++number)) return false;
  }
  return true;
}

bool remap() {
  std::size_t bytes = PIECE;
  unsigned char *piece = mapped(bytes);
  beginning.count_down();
  fill(piece, PIECE, 0);
  while (!ends) {
    const std::size_t more = bytes < MOST * PIECE ? bytes + PIECE : PIECE;
    piece = remapped(piece, bytes, more);
    bytes = more;
    fill(piece + bytes - PIECE, PIECE, bytes / PIECE - 1);
    timespec pause{0, 2'000'000};
    nanosleep(&pause, nullptr);
  }
  for (std::size_t number = 0; number < bytes / PIECE; number++) {
    if (!holds(piece + number * PIECE, PIECE, number)) return false;
  }
  return true;
}

// Moves a mapping in nearly every step, to its previous address, or to the
// former address of another mapping.
bool move(std::size_t most) {
  std::size_t bytes = 0;
  unsigned char *piece = nullptr;
  bool has_begun = false;
  while (!ends) {
    if (bytes == 0) {
      piece = mapped(PIECE);
      bytes = PIECE;
    }
    if (!std::exchange(has_begun, true)) beginning.count_down();
    piece = remapped(piece, bytes, bytes + PIECE);
    bytes += PIECE;
    // The page at each end contains its number.
    const std::size_t last = bytes / PIECE;
    fill(piece + bytes - PIECE, 64, last);
    if (!holds(piece + bytes - 2 * PIECE, 64, last - 1) && last > 2) return false;
    if (last == most) {
      munmap(piece, bytes);
      bytes = 0;
    }
    timespec pause{0, 20'000};
    nanosleep(&pause, nullptr);
  }
  return true;
}

}  // namespace

int main() {
  bool of_arena = false, of_mapping = false, of_main = false;
  bool of_moves[] = {false, false, false};
  std::thread arena([&] {
    std::free(allocated());
    beginning.count_down();
    of_arena = grow();
  });
  std::thread mapping([&] { of_mapping = remap(); });
  std::vector<std::thread> moves;
  for (std::size_t i = 0; i < std::size(of_moves); i++) {
    moves.emplace_back([&of_moves, i] { of_moves[i] = move(50 + 37 * i); });
  }
  std::thread input([] {
    while (std::getchar() != EOF) {
    }
    ends = true;
  });
  beginning.wait();
  std::puts("ready");
  std::fflush(stdout);
  of_main = grow();
  arena.join();
  mapping.join();
  for (std::thread &moving : moves) moving.join();
  input.join();
  const bool of_all_moves = of_moves[0] && of_moves[1] && of_moves[2];
  return of_arena && of_mapping && of_main && of_all_moves ? 0 : 1;
}
