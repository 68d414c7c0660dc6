// clang: -mcpu=v3
// also: clang-14 clang-16
#include "cpu.h"
