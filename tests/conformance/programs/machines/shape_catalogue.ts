abstract class Shape {
  abstract get area(): number;

  describe(): string {
    return `${this.constructor.name} of ${this.area.toFixed(2)}`;
  }
}

class Rectangle extends Shape {
  constructor(protected readonly width: number, protected readonly height: number) {
    super();
  }

  override get area(): number {
    return this.width * this.height;
  }
}

class Square extends Rectangle {
  constructor(side: number) {
    super(side, side);
  }

  override describe(): string {
    return `${super.describe()}, ${this.width} a side`;
  }
}

class Circle extends Shape {
  constructor(private readonly radius: number) {
    super();
  }

  override get area(): number {
    return Math.PI * this.radius ** 2;
  }
}

type Figure =
  | { kind: "rectangle"; width: number; height: number }
  | { kind: "square"; side: number }
  | { kind: "circle"; radius: number };

function shapeOf(figure: Figure): Shape | null {
  switch (figure.kind) {
    case "rectangle":
      return new Rectangle(figure.width, figure.height);
    case "square":
      return new Square(figure.side);
    case "circle":
      return new Circle(figure.radius);
    default:
      return null;
  }
}

/** Describe figures, the largest first; unknown kinds come last. */
function shapeCatalogue(figures: Figure[]): string[] {
  const shapes = figures.map(shapeOf).filter((shape): shape is Shape => shape !== null);
  const unknown = figures.filter((figure) => shapeOf(figure) === null).map(({ kind }) => `${kind}?`);
  return [...shapes.sort((a, b) => b.area - a.area).map((shape) => shape.describe()), ...unknown];
}
