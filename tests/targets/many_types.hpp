// Thirty thousand types and a variable of each type: so much debug information that the first lookup of a name takes a
// while. Pass this file to the compiler with -include.
#pragma once

#define TYPE(n)    \
  struct Type##n { \
    int a##n;      \
    double b##n;   \
    Type##n* c##n; \
  };               \
  Type##n variable##n;
#define TEN(n) TYPE(n##0) TYPE(n##1) TYPE(n##2) TYPE(n##3) TYPE(n##4) TYPE(n##5) TYPE(n##6) TYPE(n##7) TYPE(n##8) TYPE(n##9)
#define HUNDRED(n) TEN(n##0) TEN(n##1) TEN(n##2) TEN(n##3) TEN(n##4) TEN(n##5) TEN(n##6) TEN(n##7) TEN(n##8) TEN(n##9)
#define THOUSAND(n)                                                                                               \
  HUNDRED(n##0) HUNDRED(n##1) HUNDRED(n##2) HUNDRED(n##3) HUNDRED(n##4) HUNDRED(n##5) HUNDRED(n##6) HUNDRED(n##7) \
  HUNDRED(n##8) HUNDRED(n##9)
#define TEN_THOUSAND(n)                                                                                           \
  THOUSAND(n##0) THOUSAND(n##1) THOUSAND(n##2) THOUSAND(n##3) THOUSAND(n##4) THOUSAND(n##5) THOUSAND(n##6)         \
  THOUSAND(n##7) THOUSAND(n##8) THOUSAND(n##9)

TEN_THOUSAND(_0)
TEN_THOUSAND(_1)
TEN_THOUSAND(_2)
