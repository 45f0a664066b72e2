// Blocks whose types are known only from debug information: containers of the C++ library, a tree
// of structures, a union, two holders with conflicting types, an intrusive list, and a pointer that
// is declared with a wrong type.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <forward_list>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unistd.h>
#include <unordered_map>
#include <vector>

namespace app {

struct Leaf {
    double weight;
    char label[32];
};

struct Branch {
    Branch *left;
    Branch *right;
    Leaf *leaf;
    long depth;
};

struct Session {
    std::string name;
    std::vector<Leaf *> leaves;
    long opened;
};

struct Point {
    double x, y, z;
};

struct Colour {
    long red, green, blue, alpha;
};

struct Sound {
    long pitch, volume, length, place;
};

union Either {
    Colour *colour;
    Sound *sound;
};

struct Link {
    Link *next;
    Link *previous;
};

// Begins with its link, so that a pointer to a link points to the beginning of a Job.
struct Job {
    Link link;
    Point *where;
    long number[5];
};

struct Base {
    long kind;
    Point *where;
};

struct Derived : Base {
    long more[6];
};

struct Device {
    virtual ~Device() = default;
    Colour *colour = nullptr;
    long state[3] = {};
};

struct Opaque;

Branch *tree;
std::vector<Session> sessions;
std::map<int, Point> points;
std::set<long> numbers;
std::list<Colour> colours;
std::forward_list<Point> path;
std::unordered_map<long, std::unique_ptr<Colour>> by_key;
std::deque<Colour> waiting;
std::shared_ptr<Session> shared;
std::vector<bool> flags;
std::vector<std::vector<int>> rows;
Either either;
Colour *as_colour;
Sound *as_sound;
Link jobs{&jobs, &jobs};
Base *base;
Derived *derived;
Device *device;
// Points to text.
Branch *not_a_branch;
Point *many_points;
void *anything;
Opaque *opaque;
Colour **table;

struct Registry {
    std::map<std::string, Leaf *> known;
};

Registry &registry() {
    static Registry only;
    return only;
}

Branch *grow(int depth) {
    if (depth == 0) {
        return nullptr;
    }
    auto *branch = new Branch{grow(depth - 1), grow(depth - 1), new Leaf{}, depth};
    branch->leaf->weight = depth;
    strcpy(branch->leaf->label, "a label of a leaf");
    return branch;
}

} // namespace app

struct app::Opaque {
    long a, b, c, d, e, f, g, h, i, j, k;
};

int main() {
    using namespace app;
    tree = grow(7); // 127 branches, 127 leaves
    for (int i = 0; i < 40; i++) {
        points[i] = Point{1, 2, 3};
        numbers.insert(i);
        colours.push_back(Colour{1, 2, 3, 4});
        path.push_front(Point{1, 2, 3});
        by_key[i] = std::make_unique<Colour>(Colour{1, 2, 3, 4});
        waiting.push_back(Colour{1, 2, 3, 4});
    }
    sessions.reserve(20);
    for (int i = 0; i < 20; i++) {
        Session session;
        session.name = std::string(50, 'n');
        session.leaves.reserve(4);
        session.leaves.push_back(new Leaf{1.0, "of a session"});
        session.opened = i;
        sessions.push_back(std::move(session));
    }
    shared = std::make_shared<Session>();
    shared->leaves.reserve(4);
    flags.resize(4000);
    rows.resize(10);
    for (auto &row : rows) {
        row.resize(100);
    }
    either.colour = new Colour{};
    as_colour = new Colour{1, 2, 3, 4};
    as_sound = reinterpret_cast<Sound *>(as_colour);
    for (int i = 0; i < 30; i++) {
        auto *job = new Job{};
        job->where = new Point{};
        job->link = Link{jobs.next, &jobs};
        jobs.next->previous = &job->link;
        jobs.next = &job->link;
    }
    derived = new Derived{};
    derived->where = new Point{};
    base = derived;
    device = new Device;
    device->colour = new Colour{};
    auto *text = static_cast<char *>(malloc(sizeof(Branch)));
    memset(text, 'x', sizeof(Branch));
    not_a_branch = reinterpret_cast<Branch *>(text);
    many_points = new Point[100]{};
    anything = malloc(3000);
    opaque = new Opaque{};
    table = new Colour *[8]{};
    table[3] = new Colour{};
    for (int i = 0; i < 9; i++) {
        registry().known["key " + std::to_string(i)] = new Leaf{};
    }
    puts("ready");
    fflush(stdout);
    if (isatty(0)) {
        pause();
    }
    char byte;
    while (read(0, &byte, 1) > 0) {
    }
}
