// C++ as programs have it: overloads, namespaces, virtual functions, constructors, lambdas, a sort through std::function.
#include "count.h"
#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace shapes {
class Shape {
public:
	virtual ~Shape() = default;
	virtual double area() const = 0;
	FN double twice() const;
};

double Shape::twice() const
{
	COUNT("shapes::Shape::twice() const");
	return area() * 2;
}

class Square : public Shape {
	double side;

public:
	FN explicit Square(double s);
	FN double area() const override;
};

Square::Square(double s) : side(s)
{
	COUNT("shapes::Square::Square(double)");
}

double Square::area() const
{
	COUNT("shapes::Square::area() const");
	return side * side;
}
} // namespace shapes

FN static long over(int x)
{
	COUNT("over(int)");
	return x + 1;
}

FN static long over(const char *x)
{
	COUNT("over(char const*)");
	return (long)strlen(x);
}

int main()
{
	COUNT("main");
	std::vector<std::unique_ptr<shapes::Shape>> all;
	for (int i = 0; i < 101; i++)
		all.push_back(std::make_unique<shapes::Square>((i * 37) % 101));
	std::function<bool(const std::unique_ptr<shapes::Shape> &, const std::unique_ptr<shapes::Shape> &)> less =
		[](auto &a, auto &b) { return a->area() < b->area(); };
	std::sort(all.begin(), all.end(), less);
	double sum = 0;
	std::map<std::string, long> names;
	for (size_t i = 0; i < all.size(); i++) {
		CHECK(all[i]->twice() == 2.0 * (double)i * (double)i);
		sum += all[i]->area();
		names[std::to_string(i)] += over((int)i) + over(std::to_string(i).c_str());
	}
	long total = 0;
	for (auto &entry : names)
		total += entry.second;
	printf("classes %.0f %ld\n", sum, total);
	return 0;
}
