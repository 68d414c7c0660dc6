// clang: -mcpu=v4
#include "cpu.h"
