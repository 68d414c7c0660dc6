// What the C++ compilers work on: templates, lambdas, exceptions, threads.
#include <algorithm>
#include <iostream>
#include <map>
#include <memory>
#include <numeric>
#include <regex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

template <unsigned N> struct Fib { static constexpr unsigned value = Fib<N - 1>::value + Fib<N - 2>::value; };
template <> struct Fib<0> { static constexpr unsigned value = 0; };
template <> struct Fib<1> { static constexpr unsigned value = 1; };

struct Shape { virtual ~Shape() = default; virtual int area() const = 0; };
struct Square : Shape { int a; explicit Square(int a) : a(a) {} int area() const override { if (a > 90) throw std::out_of_range("large"); return a * a; } };

int main()
{
	std::vector<std::unique_ptr<Shape>> shapes;
	for (int i = 0; i < 100; i++) shapes.push_back(std::make_unique<Square>(i));
	int sum = 0, thrown = 0;
	for (auto &s : shapes) try { sum += s->area(); } catch (const std::out_of_range &) { thrown++; }
	std::map<std::string, int> count;
	for (auto w : { "the", "quick", "the", "fox" }) count[w]++;
	std::vector<int> parts(8); std::vector<std::thread> threads;
	for (int n = 0; n < 8; n++) threads.emplace_back([&parts, n] { for (int i = 0; i < 10000; i++) parts[n] += i % (n + 2); });
	for (auto &t : threads) t.join();
	std::string text = std::regex_replace(std::string("quick brown"), std::regex("(\\w)(\\w*)"), "$2$1");
	std::cout << sum << ' ' << thrown << ' ' << count["the"] << ' ' << std::accumulate(parts.begin(), parts.end(), 0) << ' ' << Fib<30>::value << ' ' << text << '\n';
	return 6;
}
