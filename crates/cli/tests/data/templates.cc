/* C++ whose functions are inlined into one another through several headers. */
#include <algorithm>
#include <functional>
#include <iostream>
#include <map>
#include <string>
#include <vector>

namespace shapes {
struct Base {
	virtual int area(int) = 0;
	virtual ~Base() {}
};
struct Square : virtual Base {
	int area(int side) override { return side * side; }
};
template <class T, int N> struct Box {
	T values[N];
	T sum() const
	{
		T all{};
		for (auto const &value : values)
			all += value;
		return all;
	}
};
}

static bool shorter(const std::string &a, const std::string &b)
{
	return a.size() < b.size();
}

int main(int argc, char **argv)
{
	std::vector<std::string> words(argv, argv + argc);
	std::sort(words.begin(), words.end(), shorter);
	std::map<std::string, shapes::Box<long, 4>> boxes;
	for (auto &word : words)
		boxes[word].values[0] += word.size();
	std::function<int(int)> count = [&](int more) { return (int)boxes.size() + more; };
	shapes::Square square;
	shapes::Base &base = square;
	std::cout << count(3) << base.area(argc) << boxes.begin()->second.sum() << "\n";
}
