// The service that `memhook-rs demo` starts. Workers serve requests of several kinds, and each kind
// allocates. One kind forgets to release a session when the client sends a rare request.
#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace {

struct Session {
  std::string user;
  std::vector<int> history;
};

std::mutex cache_lock;
std::map<int, std::string> cache;  // levels off at 512 entries

std::string render_page(int request) {
  std::string page = "<h1>" + std::to_string(request) + "</h1>";
  for (int i = 0; i < 20; i++) page += "<p>paragraph " + std::to_string(i) + "</p>";
  return page;
}

void remember(int key, std::string page) {
  std::lock_guard<std::mutex> guard(cache_lock);
  cache[key % 512] = std::move(page);
}

[[gnu::noinline]] Session* open_session(int user) {
  auto session = std::make_unique<Session>();
  session->user = "a user with a rather long name, number " + std::to_string(user);
  session->history.resize(16);
  return session.release();
}

[[gnu::noinline]] void close_session(Session* session) { delete session; }

[[gnu::noinline]] bool export_history(Session* session, int request) {
  session->history.push_back(request);
  return request % 10 != 0;
}

[[gnu::noinline]] void handle_export(int request) {
  Session* session = open_session(request);
  if (!export_history(session, request)) return;  // the leak: the session stays open
  close_session(session);
}

[[gnu::noinline]] void handle_page(int request) { remember(request, render_page(request)); }

[[gnu::noinline]] void handle_search(int request) {
  std::vector<std::string> hits;
  for (int i = 0; i < 8; i++) hits.push_back(render_page(request + i));
}

void serve(int request) {
  switch (request % 4) {
    case 0: return handle_page(request);
    case 1: return handle_search(request);
    case 2: return handle_export(request);
    default: return handle_page(request / 2);
  }
}

void worker(unsigned seed) {
  std::mt19937 random(seed);
  for (;;) {
    for (int i = 0; i < 20; i++) serve(static_cast<int>(random() % 1'000'000));
    usleep(1000);
  }
}

}  // namespace

// The argument is the pid of the parent, which started this program.
int main(int argc, char** argv) {
  // Ends when the parent ends, even if the parent has ended already.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (argc > 1 && getppid() != std::atoi(argv[1])) return 1;
  prctl(PR_SET_NAME, "demo-service");
  std::vector<std::thread> workers;
  for (unsigned i = 0; i < 4; i++) workers.emplace_back(worker, i);
  std::puts("ready");
  std::fflush(stdout);
  for (auto& thread : workers) thread.join();
}
