// Variables and types of all kinds.

#include <map>
#include <string>
#include <vector>

namespace app {

struct Point {
    double x, y;
};

struct Base {
    Point *where;
};

struct Node : Base {
    Node *const next = nullptr;
    Point points[4];
    unsigned bits : 3;
    union {
        Node *one;
        Point *other;
    } either;
    std::map<std::string, std::vector<Node *>> by_name;
};

template <typename T> struct Holder {
    T *held;
    static Holder *first;
};
template <typename T> Holder<T> *Holder<T>::first;

struct Declared;
Node *nodes;
Declared *declared;
typedef volatile Node Alias;
Alias *alias;
int numbers[3][5];

Holder<Point> *&holder() {
    static Holder<Point> *only;
    return only;
}

} // namespace app

namespace {
struct Hidden {
    int number;
};
Hidden *volatile hidden;
} // namespace

struct app::Declared {
    long number;
};

int main() {
    app::Holder<app::Point>::first = app::holder();
    hidden = nullptr;
    app::nodes = new app::Node{};
    app::nodes->by_name["a"].push_back(app::nodes);
    return app::numbers[0][0];
}
