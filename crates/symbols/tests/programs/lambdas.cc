// Two lambdas in a member function; the mark is in the second, which is within a block.
namespace shop {

struct Session {
  [[gnu::noinline, gnu::noclone]] int load(int many) {
    auto first = [](int each) { return each * 3; };
    int sum = first(many);
    if (many > 1) {
      auto second = [&](int each) {
        asm volatile(".globl mark_inner\nmark_inner: nop");
        return each + many;
      };
      sum += second(many);
    }
    return sum;
  }
};

}  // namespace shop

int main(int count, char**) { return shop::Session().load(count); }
